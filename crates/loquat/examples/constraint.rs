//! Answers for programs: JSON that matches a schema, and one of two words.

use serde_json::{Value, json};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let reference = std::env::args().nth(1);
    let model = loquat::Model::load(reference.as_deref().unwrap_or("smollm2:135m"))?;

    let city = json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "maxLength": 20 },
            "people": { "type": "integer", "minimum": 0, "maximum": 99_999_999 }
        },
        "required": ["name", "people"],
        "additionalProperties": false
    });
    let text = model
        .chat("Tell me of a city.")
        .schema(city)
        .seed(1)
        .text()?;
    let city: Value = serde_json::from_str(&text)?;
    println!("{} has {} people", city["name"], city["people"]);

    let mood = model.chat("Is this sad or glad: 'I won!'");
    println!("{}", mood.choice(["sad", "glad"]).seed(1).text()?);
    Ok(())
}
