//! The status page as a browser shows it: what a person reads, presses and sees.
//!
//! What holds here: nothing is done in the page that it would not allow, but to ask it. Screenshots are files in
//! `target/browser`, and their paths are printed.

use super::devtools::Browser;
use crate::support::{POLL, WAIT_LIMIT};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What the page says when its member does not answer.
pub const UNANSWERED: &str = "This member does not answer this page";

pub struct Page {
    browser: Browser,
    origin: String,
}

impl Page {
    /// The page of the node whose HTTP port is this, 1200 pixels wide and light.
    pub fn open(address: &str) -> Page {
        let mut page = Page { browser: Browser::start(), origin: format!("http://{address}") };
        for domain in ["Page", "Runtime", "Log", "Network"] {
            page.browser.call(&format!("{domain}.enable"), &json!({}));
        }
        page.browser.call("Emulation.setFocusEmulationEnabled", &json!({ "enabled": true }));
        page.show_as("light", 1200);
        page.load();
        page
    }

    /// Loads it anew.
    pub fn load(&mut self) {
        let url = format!("{}/", self.origin);
        let told = self.browser.call("Page.navigate", &json!({ "url": url }));
        assert!(told.get("errorText").is_none(), "{told}");
        let loaded = format!(
            "document.readyState === 'complete' && location.href === {}",
            Value::from(url.as_str())
        );
        self.until("it is loaded", &loaded);
    }

    /// Without JavaScript from the next load on.
    pub fn forbid_scripts(&mut self) {
        self.browser.call("Emulation.setScriptExecutionDisabled", &json!({ "value": true }));
    }

    /// Lets it be light or dark, and so many pixels wide.
    pub fn show_as(&mut self, scheme: &str, width: u32) {
        let feature = json!({ "name": "prefers-color-scheme", "value": scheme });
        self.browser.call("Emulation.setEmulatedMedia", &json!({ "features": [feature] }));
        let size =
            json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false });
        self.browser.call("Emulation.setDeviceMetricsOverride", &size);
    }

    /// The value of an expression in the page.
    pub fn eval(&mut self, script: &str) -> Value {
        self.try_eval(script).unwrap_or_else(|error| panic!("{script}: {error}"))
    }

    fn try_eval(&mut self, script: &str) -> Result<Value, Value> {
        let asked = json!({ "expression": script, "returnByValue": true });
        let mut told = self.browser.try_call("Runtime.evaluate", &asked)?;
        match told.get("exceptionDetails") {
            Some(exception) => Err(exception.clone()),
            None => Ok(told["result"]["value"].take()),
        }
    }

    /// Waits until this holds in the page.
    pub fn until(&mut self, what: &str, script: &str) {
        let began = Instant::now();
        loop {
            // Its values are gone while another page is loaded.
            let now = self.try_eval(script);
            if now == Ok(Value::Bool(true)) {
                return;
            }
            assert!(began.elapsed() < WAIT_LIMIT, "never: {what}: {now:?}");
            std::thread::sleep(POLL);
        }
    }

    /// The text of the one element.
    pub fn text(&mut self, selector: &str) -> String {
        let texts = self.texts(selector);
        let [text] = texts.as_slice() else { panic!("{selector}: {texts:?}") };
        text.clone()
    }

    /// The texts of all elements.
    pub fn texts(&mut self, selector: &str) -> Vec<String> {
        let selector = Value::from(selector);
        let script =
            format!("[...document.querySelectorAll({selector})].map((one) => one.textContent)");
        let texts = self.eval(&script);
        serde_json::from_value(texts).expect("texts")
    }

    /// The cells of each row of a table.
    pub fn rows(&mut self, body: &str) -> Vec<Vec<String>> {
        let rows = Value::from(format!("{body} tr"));
        let script = format!(
            "[...document.querySelectorAll({rows})].map((row) => [...row.cells].map((cell) => cell.textContent))"
        );
        let rows = self.eval(&script);
        serde_json::from_value(rows).expect("rows")
    }

    /// How often the page has asked for newer numbers since it was opened.
    fn looks(&mut self) -> usize {
        // With the result arrive the events before it.
        self.eval("0");
        let path = "/status.json";
        self.requests().filter(|url| url.ends_with(path)).count()
    }

    fn requests(&self) -> impl Iterator<Item = &str> {
        self.events("Network.requestWillBeSent").filter_map(|one| one["request"]["url"].as_str())
    }

    fn events(&self, method: &str) -> impl Iterator<Item = &Value> {
        let named = move |event: &&Value| event["method"] == method;
        self.browser.events.iter().filter(named).map(|event| &event["params"])
    }

    /// Waits until the page shows an answer to a question that it asked after this call, by itself.
    pub fn look_again(&mut self) {
        let began = Instant::now();
        loop {
            // It asks once the answer before is shown. One question may be under way, and another one noticed late.
            let enough = self.looks() + 3;
            while self.looks() < enough {
                assert!(began.elapsed() < WAIT_LIMIT, "the page has stopped asking");
                std::thread::sleep(POLL);
            }
            if !self.text("#verdict").contains(UNANSWERED) {
                return;
            }
            assert!(began.elapsed() < WAIT_LIMIT, "{}", self.text("#basis"));
        }
    }

    /// Every request that left for another place than the node.
    pub fn foreign_requests(&self) -> Vec<String> {
        let own = format!("{}/", self.origin);
        let fetched = |url: &&str| !url.starts_with(&own) && !url.starts_with("data:");
        let sockets = self.events("Network.webSocketCreated").filter_map(|one| one["url"].as_str());
        self.requests().filter(fetched).chain(sockets).map(str::to_owned).collect()
    }

    /// Exceptions, errors on the console, and dialogs. A question that the node did not answer is none: the page
    /// says so itself.
    pub fn faults(&self) -> Vec<String> {
        let logged = self.events("Log.entryAdded").map(|one| &one["entry"]);
        let logged = logged.filter(|one| one["level"] == "error" && !is_unanswered(one));
        let printed = self.events("Runtime.consoleAPICalled").filter(|one| one["type"] == "error");
        let dialogs = self.events("Page.javascriptDialogOpening");
        let thrown = self.events("Runtime.exceptionThrown");
        logged.chain(printed).chain(dialogs).chain(thrown).map(Value::to_string).collect()
    }

    /// The policies that came with each load of the page.
    pub fn policies(&self) -> Vec<String> {
        let loads = self.events("Network.responseReceived").filter(|one| one["type"] == "Document");
        let policy = |load: &Value| {
            let headers = load["response"]["headers"].as_object()?;
            let name = "content-security-policy";
            let (_, policy) = headers.iter().find(|(found, _)| found.eq_ignore_ascii_case(name))?;
            policy.as_str().map(str::to_owned)
        };
        loads.map(|load| policy(load).unwrap_or_default()).collect()
    }

    /// Presses Tab.
    pub fn press_tab(&mut self) {
        for kind in ["rawKeyDown", "keyUp"] {
            let key =
                json!({ "type": kind, "key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9 });
            self.browser.call("Input.dispatchKeyEvent", &key);
        }
    }

    /// The names that the accessibility tree has for everything of these roles.
    pub fn names_of(&mut self, roles: &[&str]) -> Vec<String> {
        let tree = self.browser.call("Accessibility.getFullAXTree", &json!({}));
        let nodes = tree["nodes"].as_array().expect("nodes").iter();
        let seen = nodes.filter(|node| node["ignored"] != true);
        let of_role = |node: &&Value| {
            node["role"]["value"].as_str().is_some_and(|role| roles.contains(&role))
        };
        let name = |node: &Value| node["name"]["value"].as_str().unwrap_or_default().to_owned();
        seen.filter(of_role).map(name).collect()
    }

    /// Writes all of the page, as it looks now, to a file.
    pub fn shoot(&mut self, name: &str) {
        let size = "[document.documentElement.clientWidth, document.documentElement.scrollHeight]";
        let size = self.eval(size);
        let clip = json!({ "x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1 });
        let asked = json!({ "format": "png", "captureBeyondViewport": true, "clip": clip });
        let shot = self.browser.call("Page.captureScreenshot", &asked);
        let shot = STANDARD.decode(shot["data"].as_str().expect("data")).expect("base64");
        assert!(shot.starts_with(b"\x89PNG\r\n"), "{name}");
        let folder = shots();
        std::fs::create_dir_all(&folder).expect("a folder");
        let file = folder.join(format!("{name}.png"));
        std::fs::write(&file, shot).expect("a file");
        println!("screenshot {}", file.display());
    }
}

/// Whether a line of the browser's log tells of a question for newer numbers that got no answer.
fn is_unanswered(entry: &Value) -> bool {
    let asked = entry["url"].as_str().is_some_and(|url| url.ends_with("/status.json"));
    asked && entry["text"].as_str().is_some_and(|text| text.contains("net::ERR_"))
}

/// Beside what cargo builds.
fn shots() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent();
    target.expect("cargo's folder").join("browser")
}
