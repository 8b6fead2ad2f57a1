//! Runs a tool for the model: `cargo run --package loquat --example tools -- qwen3:0.6b`.

use loquat::{Tool, ToolChoice, Toolbox};
use serde_json::json;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let reference = std::env::args().nth(1);
    let model = loquat::Model::load(reference.as_deref().unwrap_or("qwen3:0.6b"))?;
    let weather = Tool {
        name: "weather".to_owned(),
        description: Some("The current weather in a city".to_owned()),
        parameters: json!({
            "type": "object",
            "properties": { "city": { "enum": ["Bergen", "Rome"] } },
            "required": ["city"],
            "additionalProperties": false
        }),
        strict: true,
    };
    let mut tools = Toolbox::new().with(weather, |arguments| {
        println!("weather in {}", arguments["city"]);
        Ok("rain".to_owned())
    });
    let chat = model.chat("Do I need an umbrella in Bergen?");
    let chat = chat
        .tool_choice(ToolChoice::Required)
        .seed(1)
        .max_tokens(128);
    println!("{}", chat.run_tools(&mut tools, 4)?.reply.text);
    Ok(())
}
