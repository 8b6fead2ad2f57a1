//! Two questions without blocking, the second about the first, on any executor.

use loquat::{Conversation, Model};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let reference = std::env::args().nth(1);
    let model = Model::load_async(reference.as_deref().unwrap_or("smollm2:135m")).await?;
    let mut conversation = Conversation::new(Some("Answer in one sentence.".to_owned()));
    for question in ["Name a planet.", "How large is it?"] {
        conversation.push_user(question);
        let mut answer = model
            .converse(conversation.messages())
            .max_tokens(48)
            .temperature(0.0)
            .stream()?;
        while let Some(event) = answer.next_event().await {
            print!("{}", event?.text());
        }
        println!("\n");
        conversation.push(answer.reply().clone().into_message());
    }
    Ok(())
}
