//! What a PromQL expression asks for: its selectors, their labels, and the functions around them.
//!
//! It reads the part of the language that a dashboard needs. A function or a sign that it does not know is a
//! fault, so nothing is passed over.

/// Functions and aggregations.
const FUNCTIONS: [&str; 9] =
    ["sum", "max", "min", "count", "avg", "rate", "increase", "histogram_quantile", "time"];
const KEYWORDS: [&str; 5] = ["and", "or", "unless", "bool", "offset"];
/// Words before a list of labels.
const GROUPINGS: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];

/// What a matcher of a selector asks of a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matcher {
    pub label: String,
    pub operator: String,
    pub value: String,
}

/// A metric that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector {
    pub metric: String,
    pub matchers: Vec<Matcher>,
    /// The functions around it, the outermost first.
    pub functions: Vec<String>,
}

/// Labels by which something is grouped or joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grouping {
    pub labels: Vec<String>,
    /// The functions around it, the outermost first.
    pub functions: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expression {
    pub selectors: Vec<Selector>,
    pub groupings: Vec<Grouping>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Text(String),
    Sign(char),
}

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || "_:.".contains(c);
    let (mut found, mut rest) = (Vec::new(), text.trim_start());
    while let Some(first) = rest.chars().next() {
        if is_word(first) {
            let end = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
            found.push(Token::Word(rest[..end].to_owned()));
            rest = &rest[end..];
        } else if first == '"' {
            let (inside, behind) =
                rest[1..].split_once('"').ok_or_else(|| format!("an open string: {rest}"))?;
            found.push(Token::Text(inside.to_owned()));
            rest = behind;
        } else if first == '[' {
            // How far back a rate looks.
            let (_, behind) =
                rest.split_once(']').ok_or_else(|| format!("an open range: {rest}"))?;
            rest = behind;
        } else if "(){},=!~<>+-*/%".contains(first) {
            found.push(Token::Sign(first));
            rest = &rest[1..];
        } else {
            return Err(format!("a sign that is not expected: {rest}"));
        }
        rest = rest.trim_start();
    }
    Ok(found)
}

/// What stands between the sign that is next and the one that closes it.
fn enclosed(
    tokens: &mut impl Iterator<Item = Token>,
    (open, close): (char, char),
) -> Result<Vec<Token>, String> {
    if tokens.next() != Some(Token::Sign(open)) {
        return Err(format!("no {open} where one is needed"));
    }
    let mut inside = Vec::new();
    for token in tokens {
        if token == Token::Sign(close) {
            return Ok(inside);
        }
        inside.push(token);
    }
    Err(format!("no {close}"))
}

fn matchers(inside: &[Token]) -> Result<Vec<Matcher>, String> {
    let each = inside.split(|token| *token == Token::Sign(',')).filter(|part| !part.is_empty());
    let matcher = |part: &[Token]| match part {
        [Token::Word(label), signs @ .., Token::Text(value)] => {
            let sign = |token: &Token| match token {
                Token::Sign(sign) => Ok(*sign),
                other => Err(format!("{other:?} in a matcher of {label}")),
            };
            let operator = signs.iter().map(sign).collect::<Result<String, _>>()?;
            if !["=", "!=", "=~", "!~"].contains(&operator.as_str()) {
                return Err(format!("{operator:?} in a matcher of {label}"));
            }
            Ok(Matcher { label: label.clone(), operator, value: value.clone() })
        }
        other => Err(format!("{other:?} is no matcher")),
    };
    each.map(matcher).collect()
}

impl Expression {
    pub fn of(text: &str) -> Result<Expression, String> {
        let mut found = Expression::default();
        let mut tokens = tokens(text)?.into_iter().peekable();
        // The function of each open parenthesis, if it has one, and the one whose parenthesis is next.
        let (mut open, mut function): (Vec<Option<String>>, Option<String>) = (Vec::new(), None);
        while let Some(token) = tokens.next() {
            let functions = || open.iter().flatten().cloned().collect::<Vec<String>>();
            match token {
                Token::Word(word) if GROUPINGS.contains(&word.as_str()) => {
                    let names = enclosed(&mut tokens, ('(', ')'))?.into_iter();
                    let names = names.filter_map(|token| match token {
                        Token::Word(name) => Some(name),
                        _ => None,
                    });
                    let functions = functions().into_iter().chain(function.clone()).collect();
                    found.groupings.push(Grouping { labels: names.collect(), functions });
                }
                Token::Word(word) if FUNCTIONS.contains(&word.as_str()) => function = Some(word),
                Token::Word(word) if KEYWORDS.contains(&word.as_str()) => {}
                Token::Word(word) if word.starts_with(|c: char| c.is_ascii_digit()) => {}
                Token::Word(metric) => {
                    if tokens.peek() == Some(&Token::Sign('(')) {
                        return Err(format!("an unknown function: {metric}"));
                    }
                    let inside = match tokens.peek() {
                        Some(Token::Sign('{')) => enclosed(&mut tokens, ('{', '}'))?,
                        _ => Vec::new(),
                    };
                    let functions = functions();
                    let matchers = matchers(&inside)?;
                    found.selectors.push(Selector { metric, matchers, functions });
                }
                Token::Sign('(') => open.push(function.take()),
                Token::Sign(')') => {
                    open.pop().ok_or_else(|| format!("one ) too many: {text}"))?;
                }
                Token::Sign(_) => {}
                Token::Text(text) => return Err(format!("a string outside of a matcher: {text}")),
            }
        }
        match open.is_empty() {
            true => Ok(found),
            false => Err(format!("a ( that is not closed: {text}")),
        }
    }
}

#[test]
fn an_expression_is_read_with_its_labels_and_the_functions_around_them() {
    let text =
        r#"histogram_quantile(0.99, sum by (op, le) (rate(x_bucket{op="w",i=~"$i"}[5m]))) > 2"#;
    let read = Expression::of(text).expect("an expression");
    let functions = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    let [selector] = &read.selectors[..] else { panic!("{read:?}") };
    assert_eq!(selector.metric, "x_bucket");
    assert_eq!(selector.functions, functions(&["histogram_quantile", "sum", "rate"]));
    let matchers: Vec<(&str, &str, &str)> = selector
        .matchers
        .iter()
        .map(|found| (found.label.as_str(), found.operator.as_str(), found.value.as_str()))
        .collect();
    assert_eq!(matchers, [("op", "=", "w"), ("i", "=~", "$i")]);
    let [grouping] = &read.groupings[..] else { panic!("{read:?}") };
    assert_eq!(grouping.labels, ["op", "le"]);
    assert_eq!(grouping.functions, functions(&["histogram_quantile", "sum"]));
    let two = Expression::of("time() - max(a) and b == bool 1").expect("an expression");
    let metrics: Vec<&str> = two.selectors.iter().map(|found| found.metric.as_str()).collect();
    assert_eq!(metrics, ["a", "b"]);
    assert_eq!(two.selectors[0].functions, ["max"]);
    assert!(two.selectors[1].functions.is_empty(), "{two:?}");
    for bad in
        ["rte(a[5m])", "sum(a", "a)", "a{b}", "a{b=\"c}", "a @ 1", "sum by le (a)", "a{b>\"c\"}"]
    {
        assert!(Expression::of(bad).is_err(), "{bad}");
    }
}
