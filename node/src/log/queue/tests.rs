//! What is below standard error never holds up who logs, and nothing that is said can do more than be
//! read.

use super::*;
use std::sync::mpsc;

/// Standard error whose writes wait until the test lets one go on, with its result.
struct Gated {
    results: mpsc::Receiver<io::Result<()>>,
    written: Arc<Mutex<Vec<u8>>>,
}

impl Write for Gated {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // The test has ended if nobody lets it go on.
        self.results.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))?;
        let part = bytes.len().min(1000);
        self.written.lock().extend_from_slice(&bytes[..part]);
        Ok(part)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Test {
    queue: LogQueue,
    results: mpsc::Sender<io::Result<()>>,
    written: Arc<Mutex<Vec<u8>>>,
}

fn start() -> Test {
    let (results, received) = mpsc::channel();
    let written = Arc::<Mutex<Vec<u8>>>::default();
    let out = Gated { results: received, written: Arc::clone(&written) };
    let form = LineForm::Human { colours: false };
    let queue = LogQueue::start(form, out, CallSiteLimit::default()).expect("a thread");
    Test { queue, results, written }
}

/// The story: a pipe that nobody read stopped the node at its next line, SIGTERM included.
#[test]
fn a_write_that_never_returns_holds_nobody_up_and_what_does_not_fit_is_counted() {
    let Test { queue, results, written } = start();
    let line = vec![b'x'; 1000];
    let fit = QUEUE_BYTES / line.len();
    // The thread may have taken one of them.
    for _ in 0..2 * fit {
        queue.push(line.clone());
    }
    let lost = queue.shared.waiting.lock().lost;
    assert!((fit as u64 - 1..=fit as u64).contains(&lost), "{lost} of {fit} lines were lost");
    assert!(super::super::dropped() >= lost);
    assert!(!queue.flush(Duration::ZERO));
    queue.push(vec![b'y'; QUEUE_BYTES + 1]);
    assert_eq!(queue.shared.waiting.lock().lost, lost + 1, "no line is longer than the queue");

    for _ in 0..2 * fit {
        results.send(Ok(())).expect("it waits");
    }
    assert!(queue.flush(Duration::from_secs(180)), "written once it is read");
    let kept = 2 * fit as u64 - lost;
    assert_eq!(written.lock().len() as u64, kept * 1000);
    assert_eq!(queue.shared.waiting.lock().lost, 0, "it was said");
    queue.push(b"and room again\n".to_vec());
    assert!(queue.flush(Duration::from_secs(180)));
    assert!(written.lock().ends_with(b"and room again\n"));
}

/// The story: a full filesystem below standard error ended the process at the next line.
#[test]
fn a_write_that_fails_loses_its_line_alone_and_the_next_begins_on_a_line_of_its_own() {
    let Test { queue, results, written } = start();
    let fails = || Err(io::ErrorKind::StorageFull.into());
    // The second line is written in part.
    for result in [fails(), Ok(()), fails(), fails(), Ok(()), Ok(())] {
        results.send(result).expect("it waits");
    }
    queue.push(b"first\n".to_vec());
    queue.push(vec![b'2'; 1500]);
    queue.push(b"third\n".to_vec());
    queue.push(b"fourth\n".to_vec());
    assert!(queue.flush(Duration::from_secs(180)));
    let expected = [&[b'2'; 1000][..], b"\nfourth\n"].concat();
    assert_eq!(*written.lock(), expected);
}

#[test]
fn an_event_is_one_line_that_no_terminal_obeys() {
    let event = b"WARN refused: a\x1b[2Jb\xc2\x9b1m\nINFO audit: forged \xe2\x80\xae\n";
    let escaped = |form: LineForm, event: &[u8]| String::from_utf8(form.escaped(event)).unwrap();
    let plain = LineForm::Human { colours: false };
    let expected = "WARN refused: a\\u{1b}[2Jb\\u{9b}1m\\nINFO audit: forged \\u{202e}\n";
    assert_eq!(escaped(plain, event), expected);
    let coloured = LineForm::Human { colours: true };
    let event = b"\x1b[2m2026\x1b[0m \x1b[33mWARN\x1b[0m a\x1b[2Jb\x1b]0;title\x07\n";
    assert_eq!(
        escaped(coloured, event),
        "\x1b[2m2026\x1b[0m \x1b[33mWARN\x1b[0m a\\u{1b}[2Jb\\u{1b}]0;title\\u{7}\n"
    );
    let document = serde_json::json!({ "message": "a\u{1b}\u{9b}\u{202e}\u{e0041}\n" });
    let line = escaped(LineForm::Json, document.to_string().as_bytes());
    assert_eq!(line, "{\"message\":\"a\\u001b\\u009b\\u202e\\udb40\\udc41\\n\"}\n");
    assert_eq!(serde_json::from_str::<serde_json::Value>(&line).unwrap(), document);
}
