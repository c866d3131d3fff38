//! A Chromium without a window, driven by the DevTools protocol over two pipes: it reads commands from its file 3, and
//! writes results and events to its file 4, as JSON that ends in a NUL.
//!
//! What holds here: a message, the messages that wait and the events that are kept have a bound. A browser that says
//! nothing for [`WAIT_LIMIT`] fails the test. The browser ends with its [`Browser`], and so does all that it started.

use crate::support::WAIT_LIMIT;
use cairn_launch::log_end;
use rustix::process::{Pid, Signal, geteuid, kill_process_group};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use tempfile::TempDir;

/// The longest message. A screenshot is one.
const MESSAGE_BYTES: u64 = 64 << 20;
/// Messages that wait for the test. Then the browser waits.
const WAITING_MAX: usize = 10_000;
/// Events that are kept. Each look of a page is a few.
const KEPT_MAX: usize = 50_000;

/// The events that are kept.
const KEPT: [&str; 7] = [
    "Log.entryAdded",
    "Network.requestWillBeSent",
    "Network.responseReceived",
    "Network.webSocketCreated",
    "Page.javascriptDialogOpening",
    "Runtime.consoleAPICalled",
    "Runtime.exceptionThrown",
];

const FLAGS: [&str; 18] = [
    "--headless=new",
    "--remote-debugging-pipe",
    // A page that nobody sees asks nothing, and this one is to ask.
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    // The browser itself asks nobody for anything.
    "--disable-background-networking",
    "--disable-breakpad",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--no-default-browser-check",
    "--no-first-run",
    "--no-proxy-server",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
];

/// What the shell makes of its own input and output: files 3 and 4 of the browser.
const WITH_PIPES: &str = "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null";

/// A running browser with one page. Killed when dropped.
pub struct Browser {
    process: Child,
    commands: ChildStdin,
    messages: Receiver<Value>,
    /// The number of the last command.
    last: u64,
    /// The page's session; empty before there is one.
    session: String,
    pub events: Vec<Value>,
    /// Its profile, its home, and what it says of itself.
    folder: TempDir,
}

impl Browser {
    /// Starts `CAIRN_CHROMIUM`, or `chromium`, with an empty page.
    pub fn start() -> Browser {
        let program = std::env::var_os("CAIRN_CHROMIUM").unwrap_or_else(|| "chromium".into());
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = Command::new("sh");
        command.args(["-c", WITH_PIPES, "sh"]).arg(program).args(FLAGS);
        if geteuid().is_root() {
            // Its sandbox refuses root.
            command.arg("--no-sandbox");
        }
        command.arg(format!("--user-data-dir={}", folder.path().join("profile").display()));
        command.arg("about:blank").env("HOME", folder.path()).process_group(0);
        let said = File::create(folder.path().join("log")).expect("a file");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(said);
        let mut process = command.spawn().expect("sh starts");
        let commands = process.stdin.take().expect("a pipe");
        let output = process.stdout.take().expect("a pipe");
        let (to, messages) = sync_channel(WAITING_MAX);
        std::thread::spawn(move || read_messages(output, &to));
        let (session, events) = (String::new(), Vec::new());
        let mut browser = Browser { process, commands, messages, last: 0, session, events, folder };
        let page = browser.call("Target.createTarget", &json!({ "url": "about:blank" }));
        let attached = json!({ "targetId": page["targetId"], "flatten": true });
        let attached = browser.call("Target.attachToTarget", &attached);
        browser.session = attached["sessionId"].as_str().expect("a session").to_owned();
        browser
    }

    /// The result of a command to the page.
    pub fn call(&mut self, method: &str, parameters: &Value) -> Value {
        match self.try_call(method, parameters) {
            Ok(result) => result,
            Err(error) => panic!("{method} {parameters}: {error}"),
        }
    }

    /// The same for one that may fail, as while another page is loaded.
    ///
    /// # Errors
    /// What the browser says.
    pub fn try_call(&mut self, method: &str, parameters: &Value) -> Result<Value, Value> {
        self.last += 1;
        let id = self.last;
        let mut command = json!({ "id": id, "method": method, "params": parameters });
        if !self.session.is_empty() {
            command["sessionId"] = self.session.as_str().into();
        }
        let mut bytes = command.to_string().into_bytes();
        bytes.push(0);
        if let Err(error) = self.commands.write_all(&bytes) {
            panic!("{method}: {error}\n{}", self.log());
        }
        loop {
            let mut message = match self.messages.recv_timeout(WAIT_LIMIT) {
                Ok(message) => message,
                Err(error) => panic!("{method}: the browser is silent: {error}\n{}", self.log()),
            };
            if message["id"] != id {
                self.keep(message);
                continue;
            }
            return match message.get("error") {
                Some(error) => Err(error.clone()),
                None => Ok(message["result"].take()),
            };
        }
    }

    fn keep(&mut self, event: Value) {
        if event["method"].as_str().is_some_and(|method| KEPT.contains(&method)) {
            assert!(self.events.len() < KEPT_MAX, "the page does more than it should: {event}");
            self.events.push(event);
        }
    }

    /// The last lines that the browser wrote about itself. A missing program is among them.
    fn log(&self) -> String {
        log_end(&self.folder.path().join("log"), 20)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It may have ended already.
        kill_process_group(Pid::from_child(&self.process), Signal::KILL).ok();
        self.process.wait().ok();
    }
}

/// Hands on each message until the browser ends, or says what is none.
fn read_messages(output: ChildStdout, to: &SyncSender<Value>) {
    let mut output = BufReader::new(output);
    loop {
        let mut message = Vec::new();
        let read = output.by_ref().take(MESSAGE_BYTES).read_until(0, &mut message);
        if read.is_err() || message.pop() != Some(0) {
            return;
        }
        let Ok(message) = serde_json::from_slice(&message) else { return };
        if to.send(message).is_err() {
            return;
        }
    }
}
