//! Serves a small repository until standard input ends, for trying clients by hand:
//!
//! ```text
//! HF_ENDPOINT=$(cargo run -q -p loquat-hubkit --example serve) …
//! ```

use std::io;

use loquat_hubkit::{File, HubServer, Repo, noise};

fn main() -> io::Result<()> {
    let files = vec![
        File::small("config.json", r#"{"model_type": "llama"}"#),
        File::small("sub/notes with space.txt", "a note\n"),
        File::large("model.gguf", noise(3_000_000, 1)),
    ];
    let server = HubServer::start(vec![Repo::new("someone/model", files)])?;
    println!("{}", server.url());
    io::copy(&mut io::stdin(), &mut io::sink())?;
    eprintln!("{} bytes of files were sent", server.sent());
    Ok(())
}
