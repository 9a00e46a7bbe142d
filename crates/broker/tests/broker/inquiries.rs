//! Who has what: processes that answer, and those that do not.

use softrdma_broker::{
    CallError, Client, News, Refusal,
    resource::{Details, Kind, Object, Question, REPORTED_MAX, Report},
};

use crate::support::{Running, eventually, wait};

const QUESTION: Question = Question {
    kind: Kind::Context,
    from: 7,
};

fn report(number: u32) -> Report {
    Report {
        objects: vec![Object {
            number,
            link: Some("rxe_lo".into()),
            details: Details::Context,
        }],
        next: Some(9),
    }
}

/// The number of the question that arrives next.
fn next_question(process: &Client) -> u64 {
    loop {
        wait(process);
        for news in process.news().expect("it runs") {
            if let News::Question { inquiry, question } = news {
                assert_eq!(question, QUESTION);
                return inquiry;
            }
        }
    }
}

fn only_process(client: &Client) -> u64 {
    let processes = client.processes().expect("it runs");
    let [process] = &processes[..] else {
        panic!("one subscribed: {processes:?}");
    };
    assert_eq!(process.pid, std::process::id().cast_signed());
    process.key
}

#[test]
fn what_a_process_answers_reaches_who_asked() {
    let running = Running::start();
    let (client, process) = (running.client(), running.subscriber());
    let key = only_process(&client);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let inquiry = next_question(&process);
            process.report(inquiry, report(3)).expect("it runs");
        });
        assert_eq!(client.inquire(key, QUESTION).expect("it runs"), report(3));
    });
}

#[test]
fn a_silent_process_is_named_and_holds_nobody_up() {
    let running = Running::start();
    let (client, process) = (running.client(), running.subscriber());
    let key = only_process(&client);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| client.inquire(key, QUESTION));
        let late = next_question(&process);
        running.client().status().expect("others are served");
        let refused = asking.join().expect("no panic").expect_err("no answer");
        let CallError::Refused(Refusal::NoAnswer { pid, .. }) = refused else {
            panic!("{refused}");
        };
        assert_eq!(pid, std::process::id().cast_signed());

        // an answer that comes too late is not taken for that of the next question
        process.report(late, report(1)).expect("it runs");
        scope.spawn(|| {
            let inquiry = next_question(&process);
            process.report(inquiry, report(2)).expect("it runs");
        });
        assert_eq!(client.inquire(key, QUESTION).expect("it runs"), report(2));
    });
}

#[test]
fn a_process_that_reads_nothing_does_not_fill_the_broker() {
    let running = Running::start();
    let (client, _process) = (running.client(), running.subscriber());
    let key = only_process(&client);
    let askers: Vec<Client> = (0..100).map(|_| running.client()).collect();
    // until its socket is full, and beyond
    for _ in 0..4 {
        std::thread::scope(|scope| {
            for asker in &askers {
                scope.spawn(|| {
                    let refused = asker.inquire(key, QUESTION).expect_err("it is silent");
                    assert_eq!(refused.errno(), libc::ETIMEDOUT);
                });
            }
        });
    }
    client.status().expect("the broker is well");
}

#[test]
fn a_process_that_ends_answers_no_more() {
    let running = Running::start();
    let (client, process) = (running.client(), running.subscriber());
    let key = only_process(&client);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| client.inquire(key, QUESTION));
        next_question(&process);
        drop(process);
        let refused = asking.join().expect("no panic").expect_err("it ended");
        assert_eq!(refused.errno(), libc::ESRCH, "{refused}");
    });
    assert_eq!(client.processes().expect("it runs"), []);
    let refused = client.inquire(key, QUESTION).expect_err("it ended");
    assert_eq!(refused.errno(), libc::ESRCH);
}

#[test]
fn nobody_answers_for_another_and_not_without_bounds() {
    let running = Running::start();
    let (client, process) = (running.client(), running.subscriber());
    let key = only_process(&client);
    let impostor = running.subscriber();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let inquiry = next_question(&process);
            impostor.report(inquiry, report(1)).expect("it runs");
            // after the broker has read that
            running.client().status().expect("it runs");
            process.report(inquiry, report(2)).expect("it runs");
        });
        assert_eq!(client.inquire(key, QUESTION).expect("it runs"), report(2));
    });
    let object = report(1).objects.remove(0);
    let endless = Report {
        objects: vec![object; REPORTED_MAX + 1],
        next: None,
    };
    impostor.report(0, endless).expect("the broker reads it");
    eventually("the broker lets go of it", || {
        client.processes().expect("it runs").len() == 1
    });
}

#[test]
fn small_numbers_are_used_again() {
    let running = Running::start();
    let client = running.client();
    let ordinals = || -> Vec<u32> {
        let processes = client.processes().expect("it runs");
        processes.iter().map(|process| process.ordinal).collect()
    };
    let (first, _second) = (running.subscriber(), running.subscriber());
    assert_eq!(ordinals(), [0, 1]);
    drop(first);
    eventually("the first is forgotten", || ordinals() == [1]);
    let _third = running.subscriber();
    assert_eq!(ordinals(), [1, 0]);
}
