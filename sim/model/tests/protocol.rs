//! The whole table: the protocol holds within the bounds, and the searches without a rule find the
//! known violation in the known number of steps.
use cairn_model::Deeper;

#[test]
#[ignore = "takes a minute: ./test model"]
fn the_protocol_holds_and_each_missing_rule_is_caught() {
    let wrong = cairn_model::table("", &Deeper::default(), &mut std::io::stdout()).unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_counterexample_is_told_in_plain_words() {
    let text = cairn_model::trace("lost_tail_recovers", &Deeper::default()).unwrap();
    assert!(text.contains("loses power") && text.contains("committed entry lost"), "{text}");
    assert_eq!(cairn_model::trace("no such rule", &Deeper::default()), None);
}
