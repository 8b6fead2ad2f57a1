//! Serves a small repository until standard input ends, to try clients by hand. Prints its address
//! for `HF_ENDPOINT`, and at the end how many bytes of files it sent. The optional argument limits
//! the bytes per second of each connection.

use std::io;

use loquat_hubkit::{FakeFile, FakeRepo, HubServer, noise};

fn main() -> io::Result<()> {
    let files = vec![
        FakeFile::small("config.json", r#"{"model_type": "llama"}"#),
        FakeFile::small("sub/notes with space.txt", "a note\n"),
        FakeFile::large("model.gguf", noise(3_000_000, 1)),
    ];
    let server = HubServer::start(vec![FakeRepo::new("someone/model", files)])?;
    server.throttle(std::env::args().nth(1).and_then(|pace| pace.parse().ok()));
    println!("{}", server.url());
    io::copy(&mut io::stdin(), &mut io::sink())?;
    eprintln!("{} bytes of files were sent", server.sent());
    Ok(())
}
