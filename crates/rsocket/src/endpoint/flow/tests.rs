use super::*;

/// Half of the receive buffer.
const HALF: usize = 1000;

/// Of a connection that is established.
fn opened() -> Flow {
    let mut flow = Flow::new(HALF, &Settings::default());
    flow.peer = Some(ConnectionData {
        is_big_endian: false,
        credits: 384,
        iomap: None,
        targets: Target::default(),
        buffer: Target::default(),
    });
    flow.readable = true;
    flow.writable = true;
    flow.is_established = true;
    flow
}

fn says(flow: &mut Flow, word: u32) {
    flow.hear(Some(word.to_be_bytes()));
}

#[test]
fn words_that_no_rsocket_says_break_a_stream() {
    let words = [
        // nobody has defined these
        0x2000_0000,
        0x4000_0001,
        0x6000_0000,
        0xa000_0000,
        0xe000_0003,
        0xffff_ffff,
        // more bytes than there is room for
        HALF as u32 + 1,
        0x1fff_ffff,
    ];
    for word in words {
        let mut flow = opened();
        says(&mut flow, word);
        assert!(matches!(flow.end, Some(End::Broken(_))), "{word:#x}");
        assert!(!flow.readable && !flow.writable, "{word:#x}");
        assert!(matches!(flow.nothing_to_read(), Err(Error::Reset(_))));
        assert!(matches!(flow.not_writable(), Error::Reset(_)));
    }
    let mut flow = opened();
    flow.hear(None);
    assert!(matches!(flow.end, Some(End::Broken(_))), "no word at all");
}

#[test]
fn what_came_before_a_broken_word_is_read() {
    let mut flow = opened();
    says(&mut flow, 100);
    says(&mut flow, 0xffff_ffff);
    assert_eq!(flow.receive.piece(0, 1000), (0, 100));
    assert!(flow.readiness().readable && flow.readiness().failed);
}

#[test]
fn the_first_end_counts() {
    let mut flow = opened();
    says(&mut flow, word(Message::Disconnect));
    flow.finish(End::Broken("the queue pair receives no more"));
    assert_eq!(flow.end, Some(End::Closed));
    assert_eq!(flow.nothing_to_read().ok(), Some(0));
}

/// Whatever a peer says, in whatever order: the program reads inside of the buffer, and each half
/// is granted from its front.
#[test]
fn no_words_lead_outside_the_buffer() {
    for seed in 0..300 {
        let mut random = Random(seed);
        let mut flow = opened();
        let mut unread = 0;
        while flow.end.is_none() {
            let said = match random.below(16) {
                0 => random.next() as u32,
                1 => word(Message::Credit(random.next() as u16)),
                2 => word(Message::Iomap(random.next() as u16)),
                3 => word(Message::KeepAlive),
                _ => random.below(HALF / 4) as u32,
            };
            says(&mut flow, said);
            let came = flow.receive.readable() - unread;
            assert!(came == 0 || came == said as usize);
            let (at, length) = flow.receive.piece(0, random.below(HALF / 2));
            assert!(at + length <= 2 * HALF);
            flow.receive.consume(length);
            unread = flow.receive.readable();
            while flow.receive.is_due() && flow.end.is_none() {
                let target = flow.receive.announce().target;
                assert!(matches!(target, None | Some(0 | HALF)), "{target:?}");
            }
            assert!(unread <= 2 * HALF);
        }
        assert!(matches!(flow.end, Some(End::Broken(_) | End::Closed)));
    }
}

fn word(message: Message) -> u32 {
    u32::from_be_bytes(message.to_immediate())
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}
