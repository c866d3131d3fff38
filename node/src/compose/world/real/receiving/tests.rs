//! Bodies whose frames a test sends, and what their messages are charged.

use super::*;
use crate::admission::memory::Budget;
use futures::FutureExt;
use tokio::sync::mpsc;

const TIME: Duration = Duration::from_secs(600);
const MOST: usize = 1 << 20;

/// A body whose frames the test sends.
struct Sent(mpsc::UnboundedReceiver<Vec<u8>>);

impl http_body::Body for Sent {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.0.poll_recv(context).map(|bytes| Some(Ok(Frame::data(bytes?.into()))))
    }
}

struct Stream {
    sender: mpsc::UnboundedSender<Vec<u8>>,
    body: Arriving<Sent>,
    arrived: Arrived,
}

impl Stream {
    fn of(budget: &Budget, time: Duration) -> Stream {
        let (sender, frames) = mpsc::unbounded_channel();
        let arrived = Arrived::default();
        let account = budget.account(Arc::default());
        let body = Arriving::new(Sent(frames), account, Some(arrived.clone()), (MOST, time));
        Stream { sender, body, arrived }
    }

    fn send(&self, bytes: &[u8]) {
        self.sender.send(bytes.to_vec()).expect("sent");
    }

    async fn next(&mut self) -> Result<Frame<Bytes>, Status> {
        use http_body::Body as _;
        let next = std::future::poll_fn(|context| Pin::new(&mut self.body).poll_frame(context));
        next.await.expect("a frame")
    }

    async fn taken(&mut self) -> usize {
        self.next().await.expect("no error").into_data().expect("data").len()
    }

    /// The service has decoded the next message, and is done with it.
    fn served(&self) {
        assert!(self.arrived.decoded(0).expect("it fits").is_some(), "a message is charged");
    }
}

fn message(length: usize) -> Vec<u8> {
    let header = [&[0][..], &u32::try_from(length).expect("short").to_be_bytes()].concat();
    [header, vec![7; length]].concat()
}

fn held(budget: &Budget) -> usize {
    usize::try_from(budget.status().held_bytes).expect("a size")
}

#[tokio::test]
async fn a_message_is_charged_from_its_header_until_it_is_served() {
    let budget = Budget::new(64 << 20);
    let mut stream = Stream::of(&budget, TIME);
    let bytes = [message(100), message(50)].concat();
    // Cut in the first header, in the content, and in the second header.
    let cuts = [0, 3, 60, 107, bytes.len()];
    let mut charged = Vec::new();
    for cut in cuts.windows(2) {
        stream.send(&bytes[cut[0]..cut[1]]);
    }
    let mut taken = 0;
    while taken < bytes.len() {
        taken += stream.taken().await;
        charged.push((taken, held(&budget)));
        if taken == 105 {
            stream.served();
            charged.push((taken, held(&budget)));
        }
    }
    let (first, second) = (arriving_bytes(100), arriving_bytes(50));
    assert_eq!(charged, [(3, 0), (60, first), (105, first), (105, 0), (107, 0), (160, second)]);
    stream.served();
    assert_eq!(held(&budget), 0);
}

#[tokio::test]
async fn what_does_not_fit_waits_and_one_that_never_ends_frees_its_memory() {
    let budget = Budget::new(200_000);
    let (mut one, mut other) = (Stream::of(&budget, TIME), Stream::of(&budget, TIME));
    one.body.limits.1 = Duration::from_millis(50);
    one.send(&message(40_000)[..10]);
    one.taken().await;
    other.send(&message(40_000)[..10]);
    for _ in 0..3 {
        assert!(other.next().now_or_never().is_none(), "no memory for both");
    }
    assert_eq!(budget.status().waiting, 1);
    other.send(&message(40_000)[10..]);
    let error = one.next().await.expect_err("it never ends");
    assert_eq!(error.code(), tonic::Code::DeadlineExceeded);
    drop(one);
    assert_eq!((other.taken().await, other.taken().await), (10, 39_995));
    other.served();
    assert_eq!((held(&budget), budget.status().waiting), (0, 0));
}

/// The story: a message that began in the frame which ended the one before waited for memory
/// while the older one was charged, and its bytes were not passed on. When all holders of the
/// budget waited like that, each failed after 30 s.
#[tokio::test]
async fn a_message_whose_end_is_there_ends_before_the_next_one_waits() {
    let budget = Budget::new(260_000);
    let mut streams = [Stream::of(&budget, TIME), Stream::of(&budget, TIME)];
    let (half, two) = (10_000, [message(20_000), message(20_000)].concat());
    for stream in &mut streams {
        stream.send(&two[..half]);
        stream.taken().await;
        stream.send(&two[half..30_000]);
        stream.send(&two[30_000..]);
    }
    for stream in &mut streams {
        assert_eq!(stream.taken().await, 20_005 - half, "the first one ends");
    }
    for stream in &mut streams {
        assert!(stream.next().now_or_never().is_none(), "no memory for another one");
        stream.served();
    }
    for stream in &mut streams {
        assert_eq!(stream.taken().await + stream.taken().await, 20_005);
        stream.served();
    }
    assert_eq!(held(&budget), 0);
}

#[tokio::test]
async fn a_message_that_declares_too_much_is_refused_at_its_header() {
    let budget = Budget::new(64 << 20);
    let mut stream = Stream::of(&budget, TIME);
    stream.send(&[0, 0xff, 0xff, 0xff, 0xff]);
    let error = stream.next().await.expect_err("4 GiB");
    assert_eq!(error.code(), tonic::Code::InvalidArgument);
    let detail = cairn_client::proto::ErrorDetail::of(&error).expect("a detail");
    assert_eq!((detail.limit, detail.actual), (MOST as u64, u64::from(u32::MAX)));
    assert_eq!(held(&budget), 0);
}

#[tokio::test]
async fn a_call_of_one_message_whose_stream_never_ends_frees_its_memory() {
    let budget = Budget::new(64 << 20);
    let mut stream = Stream::of(&budget, Duration::from_millis(50));
    stream.send(&message(100));
    assert_eq!(stream.taken().await, 105);
    // The service waits for the end before it decodes.
    let error = stream.next().await.expect_err("it never ends");
    assert_eq!(error.code(), tonic::Code::DeadlineExceeded);
    drop(stream);
    assert_eq!(held(&budget), 0);
    // A stream of many messages may be idle.
    let mut stream = Stream::of(&budget, Duration::from_millis(50));
    stream.send(&message(100));
    assert_eq!(stream.taken().await, 105);
    stream.served();
    assert!(stream.next().now_or_never().is_none());
    assert!(stream.body.end.is_none());
}

/// The story: all messages of a call that takes one were read before the call was looked at. Empty
/// ones cost nothing, and what was noted of each took the memory of the node.
#[tokio::test]
async fn a_call_that_takes_one_message_ends_with_the_second_one() {
    let budget = Budget::new(64 << 20);
    let mut stream = Stream::of(&budget, TIME);
    stream.send(&message(0).repeat(1000));
    assert_eq!(stream.taken().await, HEADER_BYTES);
    let error = stream.next().await.expect_err("a second message");
    assert_eq!(error.code(), tonic::Code::InvalidArgument);
    // Nobody says when a probe's message is decoded.
    let (sender, frames) = mpsc::unbounded_channel();
    let account = budget.account(Arc::default());
    let body = Arriving::new(Sent(frames), account, None, (MOST, TIME));
    let mut probe = Stream { sender, body, arrived: Arrived::default() };
    probe.send(&message(100).repeat(1000));
    for _ in 0..1000 {
        assert_eq!(probe.taken().await, 105);
        assert_eq!(held(&budget), 0);
    }
}

#[tokio::test]
async fn a_stranger_waits_for_no_more_than_it_can_ever_have() {
    let budget = Budget::new(1 << 20);
    let mut stream = Stream::of(&budget, TIME);
    stream.body.account = stream.body.account.clone().owned_by(Owner::Stranger(0));
    stream.send(&message(100));
    assert_eq!(stream.taken().await, 105);
    stream.served();
    stream.send(&message(100_000));
    let error = stream.next().await.expect_err("more than a stranger has");
    assert_eq!(error.code(), tonic::Code::ResourceExhausted);
}

/// Messages that follow each other without a pause each have their time.
#[tokio::test]
async fn each_message_of_a_stream_has_its_own_time() {
    let budget = Budget::new(64 << 20);
    let mut stream = Stream::of(&budget, TIME);
    let two = message(100).repeat(2);
    let mut ends = Vec::new();
    for part in [&two[..50], &two[50..90], &two[90..160]] {
        stream.send(part);
    }
    let mut taken = 0;
    for _ in 0..4 {
        taken += stream.taken().await;
        if taken == 105 {
            stream.served();
        }
        ends.push(stream.body.end.as_ref().map(|end| end.deadline()));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert!(ends[0].is_some() && ends[0] == ends[1] && ends[2].is_none(), "{ends:?}");
    assert!(ends[3] > ends[0], "{ends:?}");
    stream.send(&two[160..]);
    stream.taken().await;
    assert!(stream.body.end.is_none());
}

/// Whatever the cuts, the messages are followed to their ends.
#[tokio::test]
async fn any_cuts_end_without_a_charge() {
    for step in 1..40 {
        let budget = Budget::new(64 << 20);
        let mut stream = Stream::of(&budget, TIME);
        let bytes = [message(0), message(1), message(33), message(7)].concat();
        bytes.chunks(step).for_each(|part| stream.send(part));
        let mut taken = 0;
        while taken < bytes.len() {
            taken += stream.taken().await;
            if [5, 11, 49, 61].contains(&taken) {
                stream.served();
            }
        }
        assert_eq!(held(&budget), 0, "{step}");
    }
}
