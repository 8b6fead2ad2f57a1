//! Stops an answer from another thread.

use std::thread;
use std::time::Duration;

use loquat::Error;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let reference = std::env::args().nth(1);
    let model = loquat::Model::load(reference.as_deref().unwrap_or("smollm2:135m"))?;
    let mut answer = model.complete("Once upon a time").seed(1).stream()?;
    let canceller = answer.canceller();
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(200));
        canceller.cancel();
    });
    for event in &mut answer {
        match event {
            Ok(event) => print!("{}", event.text()),
            Err(Error::Cancelled) => println!(" [cancelled]"),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
