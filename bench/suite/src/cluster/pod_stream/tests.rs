//! Tests with streams to a pod that answers as a script says.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex as Locked};

use serde_json::{Value, json};
use tokio::io::DuplexStream;

use super::*;

/// What a scripted pod does with a request.
#[derive(Clone)]
pub(in crate::cluster) enum Scripted {
    Answers(Value),
    Refuses(&'static str),
    /// Answers after this time.
    Takes(Duration, Value),
    /// Closes the stream.
    Breaks,
}

/// The rest of the script, and the requests so far.
#[derive(Default)]
pub(in crate::cluster) struct Script {
    answers: VecDeque<Scripted>,
    pub(in crate::cluster) asked: Vec<PodTask>,
    /// How often a stream was opened.
    opened: usize,
}

/// A stream to a pod that answers as the script says, and refuses all further requests.
pub(in crate::cluster) fn scripted(
    pod: &str,
    answers: Vec<Scripted>,
) -> (PodStream, Arc<Locked<Script>>) {
    let script = Arc::new(Locked::new(Script { answers: answers.into(), ..Script::default() }));
    let of_pod = script.clone();
    let stream = PodStream::by(pod, move || {
        let script = of_pod.clone();
        Box::pin(async move {
            script.lock().unwrap().opened += 1;
            let (ours, theirs) = tokio::io::duplex(BUFFER);
            tokio::spawn(serve(theirs, script));
            let (answers, requests) = tokio::io::split(ours);
            Ok(OpenStream::new(answers, requests))
        })
    });
    (stream, script)
}

async fn serve(stream: DuplexStream, script: Arc<Locked<Script>>) {
    let (requests, mut answers) = tokio::io::split(stream);
    let mut requests = BufReader::new(requests).lines();
    while let Ok(Some(line)) = requests.next_line().await {
        let PodRequest { number, task } = serde_json::from_str(&line).unwrap();
        let next = match task {
            PodTask::Greet => Some(Scripted::Answers(Value::Null)),
            task => {
                let mut script = script.lock().unwrap();
                script.asked.push(task);
                script.answers.pop_front()
            }
        };
        let answer = match next {
            Some(Scripted::Answers(value)) => Ok(value),
            Some(Scripted::Takes(time, value)) => {
                tokio::time::sleep(time).await;
                Ok(value)
            }
            Some(Scripted::Refuses(why)) => Err(why.to_owned()),
            Some(Scripted::Breaks) => return,
            None => Err("it says no more".to_owned()),
        };
        let line = serde_json::to_string(&PodAnswer { number, answer }).unwrap() + "\n";
        if answers.write_all(line.as_bytes()).await.is_err() {
            return;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_fails_with_its_stream_and_the_next_one_opens_another() {
    let (one, limit) = (PodTask::Kill(Vec::new()), Duration::from_secs(5));
    let (stream, script) = scripted(
        "client",
        vec![
            Scripted::Answers(json!(1)),
            Scripted::Breaks,
            Scripted::Answers(json!(2)),
            Scripted::Takes(limit * 2, json!(3)),
            Scripted::Answers(json!(4)),
            Scripted::Refuses("no room"),
            Scripted::Answers(json!("5")),
        ],
    );
    let opened = || script.lock().unwrap().opened;
    let ask = async || stream.ask::<u64>(one.clone(), limit).await.map_err(|e| format!("{e:#}"));
    assert_eq!((ask().await, opened()), (Ok(1), 1));
    let broken = ask().await.unwrap_err();
    assert!(broken.starts_with("pod client: the stream of `attach` ended"), "{broken}");
    assert_eq!((ask().await, opened()), (Ok(2), 2));
    assert_eq!((ask().await, opened()), (Err("no answer within 5 s".to_owned()), 2));
    assert_eq!((ask().await, opened()), (Ok(4), 3), "a late answer is to no other request");
    assert_eq!(ask().await.unwrap_err(), "pod client: no room");
    assert!(ask().await.unwrap_err().contains("invalid type"));
    assert_eq!(opened(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_cannot_be_attached_to_is_an_error_with_the_reason() {
    let refused = PodStream::by("client", || Box::pin(async { bail!("no such pod") }));
    let error = refused.call(PodTask::Greet).await.map(drop).unwrap_err();
    assert_eq!(error.to_string(), "no such pod");
    let silent = PodStream::by("client", || Box::pin(std::future::pending()));
    let error = silent.call(PodTask::Greet).await.map(drop).unwrap_err();
    assert_eq!(error.to_string(), "no answer within 10 s");
}
