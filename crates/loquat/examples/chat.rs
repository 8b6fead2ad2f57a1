//! Asks a model and prints the answer while it is generated: `cargo run --package loquat --example chat -- smollm2 "Hello"`.

use std::io::Write;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let reference = words.next().unwrap_or_else(|| "smollm2:135m".to_owned());
    let question = words
        .next()
        .unwrap_or_else(|| "Why is the sky blue?".to_owned());

    let model = loquat::Model::load(&reference)?;
    let mut answer = model.chat(question).max_tokens(64).seed(7).stream()?;
    for event in &mut answer {
        print!("{}", event?.text());
        std::io::stdout().flush()?;
    }
    println!();
    if let Some(finish) = answer.finish() {
        eprintln!("{} tokens", finish.usage.completion_tokens);
    }
    Ok(())
}
