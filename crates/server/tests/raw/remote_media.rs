//! Media that the server fetches, from a local host that behaves as its paths say.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use loquat_testkit::goldens;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::images::{TinyVision, ask, base64, openai, post, requests};
use crate::scripted::{MODEL, Scripted};
use crate::test_server::{TestServer, config};

const PATH: &str = "/v1/chat/completions";
const IMAGE: &str = "img1_90x61.png";
const MAX_BYTES: u64 = 100_000;
const FETCH_TIMEOUT: Duration = Duration::from_secs(2);

/// Serves until the test ends.
async fn host() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let image = std::fs::read(goldens::vision().join("images").join(IMAGE)).expect("an image");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let image = image.clone();
            tokio::spawn(async move {
                // The client may leave.
                let _ = answer(stream, address.port(), &image).await;
            });
        }
    });
    address
}

async fn answer(mut stream: TcpStream, port: u16, image: &[u8]) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let path = head.split(' ').nth(1).unwrap_or_default();
    let redirect = |to: &str| format!("302 Found\r\nlocation: {to}\r\ncontent-length: 0");
    let (status, body): (String, &[u8]) = match path {
        "/image" | "/folder/image" => (format!("200 OK\r\ncontent-length: {}", image.len()), image),
        // Ends with the connection.
        "/unmeasured" => ("200 OK".to_owned(), image),
        "/short" => ("200 OK\r\ncontent-length: 40".to_owned(), image),
        "/huge" => ("200 OK\r\ncontent-length: 1000000000000".to_owned(), image),
        "/endless" | "/slow" => ("200 OK".to_owned(), b"\x89PNG\r\n\x1a\n"),
        "/moved" => (redirect("/folder/moved"), b""),
        "/folder/moved" => (redirect("image"), b""),
        "/elsewhere" => (redirect(&format!("http://127.0.0.2:{port}/image")), b""),
        "/by-name" => (redirect(&format!("http://localhost:{port}/image")), b""),
        "/loop" => (redirect("/loop"), b""),
        _ => ("404 Not Found\r\ncontent-length: 0".to_owned(), b""),
    };
    let head = format!("HTTP/1.1 {status}\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body).await?;
    match path {
        "/endless" => loop {
            stream.write_all(&[0; 4096]).await?;
        },
        "/slow" => loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            stream.write_all(&[0]).await?;
        },
        _ => stream.shutdown().await,
    }
}

async fn start(hosts: &[String]) -> TestServer {
    let mut config = config();
    config.remote_media.hosts = hosts.to_vec();
    config.remote_media.max_bytes = MAX_BYTES;
    config.remote_media.timeout = FETCH_TIMEOUT;
    TestServer::with(TinyVision(goldens::vision().join("qwen3_vl")), config).await
}

/// The requests of [`requests`] whose dialects have a field for addresses.
fn with_url(url: &str) -> Vec<(&'static str, Value, &'static str)> {
    let all = requests("").into_iter().take(3);
    let mut all: Vec<_> = all
        .map(|(path, body, text, _)| (path, body, text))
        .collect();
    all[0].1 = openai(url);
    all[1].1["input"][0]["content"][0]["image_url"] = url.into();
    all[2].1["messages"][0]["content"][0]["source"] = json!({ "type": "url", "url": url });
    all
}

#[tokio::test]
async fn listed_host_is_fetched_in_every_dialect() {
    let host = host().await;
    let server = start(&[format!("http://{host}")]).await;
    let data = base64(&goldens::vision().join("images"), IMAGE);
    let inline = openai(&format!("data:image/png;base64,{data}"));
    let answer = ask(&server, PATH, &inline).await;
    let expected = &answer["choices"][0]["message"]["content"];
    assert!(expected.as_str().is_some_and(|text| !text.is_empty()));
    for path in ["image", "unmeasured", "moved"] {
        for (dialect, body, text) in with_url(&format!("http://{host}/{path}")) {
            let answer = ask(&server, dialect, &body).await;
            assert_eq!(answer.pointer(text), Some(expected), "{dialect} {path}");
        }
    }
}

#[tokio::test]
async fn other_addresses_are_refused_by_field() {
    let host = host().await;
    let port = host.port();
    let hosts = [format!("http://{host}"), format!("http://localhost:{port}")];
    let server = start(&hosts).await;
    let here = |path: &str| format!("http://{host}/{path}");
    let fields = [
        "messages[0].content[0].image_url",
        "input_image.image_url",
        "messages[0].content[0].source.url",
    ];
    for (url, expected) in [
        (
            format!("http://127.0.0.2:{port}/image"),
            "does not fetch from",
        ),
        (format!("https://{host}/image"), "does not fetch from"),
        (
            format!("http://user@{host}/image"),
            "not a URL that can be fetched",
        ),
        (
            here("elsewhere"),
            "redirects to a host that this server does not fetch",
        ),
        (here("loop"), "redirects more than 3 times"),
        (here("missing"), "status 404"),
        (here("huge"), "bytes that are left for remote media"),
        (here("endless"), "bytes that are left for remote media"),
        (here("short"), "the PNG file"),
        // Both names are listed, and lead to this machine.
        (format!("http://localhost:{port}/image"), "not public"),
        (here("by-name"), "not public"),
    ] {
        for ((path, body, _), field) in with_url(&url).into_iter().zip(fields) {
            let response = post(&server, path, &body).await;
            assert_eq!(response.status, 400, "{path} {url}: {response:?}");
            assert!(
                response.body.contains(expected),
                "{path} {url}: {response:?}"
            );
            assert!(response.body.contains(field), "{path} {url}: {response:?}");
        }
    }
}

#[tokio::test]
async fn slow_host_is_given_up() {
    let host = host().await;
    let server = start(&[format!("http://{host}")]).await;
    let began = Instant::now();
    let response = post(&server, PATH, &openai(&format!("http://{host}/slow"))).await;
    assert_eq!(response.status, 400, "{response:?}");
    assert!(response.body.contains("took longer"), "{response:?}");
    assert!(began.elapsed() >= FETCH_TIMEOUT);
    // Also if one of several is slow: the limit is for all of them.
    assert!(began.elapsed() < 5 * FETCH_TIMEOUT, "{:?}", began.elapsed());
}

#[tokio::test]
async fn limit_of_bytes_is_for_the_whole_request() {
    let host = host().await;
    let server = start(&[format!("http://{host}")]).await;
    let size = std::fs::metadata(goldens::vision().join("images").join(IMAGE)).expect("an image");
    let count = MAX_BYTES / size.len() + 1;
    let part =
        json!({ "type": "image_url", "image_url": { "url": format!("http://{host}/image") } });
    let parts: Vec<Value> = (0..count).map(|_| part.clone()).collect();
    let body = json!({ "model": MODEL, "messages": [{ "role": "user", "content": parts }] });
    let response = post(&server, PATH, &body).await;
    assert_eq!(response.status, 400, "{response:?}");
    let last = format!("messages[0].content[{}].image_url", count - 1);
    assert_eq!(response.json()["error"]["param"], last.as_str());
}

#[tokio::test]
async fn nothing_is_fetched_for_a_text_only_model() {
    // Nothing listens there.
    let mut config = config();
    config.remote_media.hosts = vec!["http://127.0.0.1:1".to_owned()];
    let server = TestServer::with(Scripted::new("hi"), config).await;
    let response = post(&server, PATH, &openai("http://127.0.0.1:1/image")).await;
    assert_eq!(response.status, 400, "{response:?}");
    assert!(response.body.contains("reads text only"), "{response:?}");
}
