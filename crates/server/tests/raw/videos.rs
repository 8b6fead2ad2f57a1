//! Videos over real sockets, on tiny checkpoints of `crates/testkit/goldens-vision`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use loquat_testkit::gif::animated_gif;
use serde_json::{Value, json};

use crate::images::{TinyVision, ask, post, start};
use crate::scripted::{MODEL, Scripted};
use crate::test_server::{TestServer, config};

const PATH: &str = "/v1/chat/completions";
const FIELD: &str = "messages[0].content[0].video_url";

fn url(bytes: &[u8]) -> String {
    format!("data:image/gif;base64,{}", STANDARD.encode(bytes))
}

fn about(video_url: Value) -> Value {
    let content = json!([
        { "type": "video_url", "video_url": video_url },
        { "type": "text", "text": "What happens?" },
    ]);
    json!({
        "model": MODEL, "max_tokens": 16, "temperature": 0,
        "messages": [{ "role": "user", "content": content }],
    })
}

#[tokio::test]
async fn videos_are_answered() {
    let (server, _) = start().await;
    let mut answers = Vec::new();
    for kind in [1, 2] {
        let clip = url(&animated_gif(90, 61, 8, kind));
        let answer = ask(&server, PATH, &about(json!({ "url": clip }))).await;
        let again = ask(&server, PATH, &about(json!(clip))).await;
        let text = &answer["choices"][0]["message"]["content"];
        assert_eq!(&again["choices"][0]["message"]["content"], text);
        let used = answer["usage"]["prompt_tokens"].as_u64();
        answers.push((text.clone(), used));
    }
    assert_ne!(answers[0].0, answers[1].0);
    // A longer video has more sampled frames, and each of them is counted.
    let long = url(&animated_gif(90, 61, 40, 1));
    let longer = ask(&server, PATH, &about(json!({ "url": long }))).await;
    assert!(longer["usage"]["prompt_tokens"].as_u64() > answers[0].1);
}

#[tokio::test]
async fn unusable_videos_are_refused_by_field() {
    let (reads, images) = start().await;
    let images_only = TinyVision(images.with_file_name("llava"));
    let images_only = TestServer::with(images_only, config()).await;
    let text_only = TestServer::start(Scripted::new("hi")).await;
    let clip = url(&animated_gif(16, 16, 2, 1));
    for (server, video, expected) in [
        (&text_only, clip.clone(), "reads text only"),
        (&images_only, clip.clone(), "does not accept video"),
        (
            &reads,
            "https://a.example/b.mp4".to_owned(),
            "send the video itself",
        ),
        (&reads, url(&animated_gif(16, 16, 0, 1)), "damaged"),
        // By name, whether it is installed or not.
        (&reads, url(b"neither"), "ffprobe"),
    ] {
        let response = post(server, PATH, &about(json!({ "url": video }))).await;
        assert_eq!(response.status, 400, "{expected}: {response:?}");
        let error = &response.json()["error"];
        assert_eq!(error["param"], FIELD, "{error}");
        let message = error["message"].as_str().unwrap_or_default();
        assert!(message.contains(expected), "{message}");
    }
}

#[tokio::test]
async fn dialects_without_videos_refuse_them() {
    let (server, _) = start().await;
    let video = json!({ "type": "video", "source":
        { "type": "base64", "media_type": "video/mp4", "data": "aGk=" } });
    let input = json!({ "type": "input_video", "video_url": "data:video/mp4;base64,aGk=" });
    for (path, body, named) in [
        (
            "/v1/messages",
            json!({ "model": MODEL, "max_tokens": 4,
                "messages": [{ "role": "user", "content": [video] }] }),
            "`video`",
        ),
        (
            "/v1/responses",
            json!({ "model": MODEL, "input": [{ "role": "user", "content": [input] }] }),
            "`input_video`",
        ),
        (
            "/api/chat",
            json!({ "model": MODEL,
                "messages": [{ "role": "user", "content": "x", "videos": ["aGk="] }] }),
            "videos",
        ),
    ] {
        let response = post(&server, path, &body).await;
        assert_eq!(response.status, 400, "{path}: {response:?}");
        assert!(response.body.contains(named), "{path}: {response:?}");
    }
}
