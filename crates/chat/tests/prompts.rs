//! From messages to a request, and from the request to a reply.

use std::path::Path;

use loquat_chat::{Chat, ChatError, ChatRequest, Conversation, Message, Role};
use loquat_engine::{Engine, EngineOptions, FinishReason, SamplingParams};
use loquat_testkit::fake_session::{FakeOptions, FakeSession};
use loquat_text::{Blame, ChatTemplate, Special, Tokenizer};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../testkit/goldens/llama");

fn tokenizer() -> Tokenizer {
    Tokenizer::from_huggingface(Path::new(GOLDEN)).expect("the golden tokenizer")
}

fn chat(template: &str) -> Chat {
    let template = ChatTemplate::new(template).expect("a template");
    Chat::new(tokenizer(), Some(template))
}

fn request() -> ChatRequest {
    ChatRequest {
        messages: vec![
            Message::new(Role::System, "be brief"),
            Message::new(Role::User, "hé"),
            Message::new(Role::Assistant, "yes?"),
            Message::new(Role::User, "why"),
        ],
        max_tokens: 9,
        stop: vec!["END".into()],
        logprobs: Some(2),
        ..ChatRequest::default()
    }
}

const TURNS: &str = "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n\
    {{ m.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

#[test]
fn a_conversation_becomes_a_prompt_with_one_bos() {
    let tokenizer = tokenizer();
    let lowered = chat(TURNS).lower(request()).expect("lowered");
    let written = "<|bos|><|im_start|>system\nbe brief<|im_end|>\n\
        <|im_start|>user\nhé<|im_end|>\n<|im_start|>assistant\nyes?<|im_end|>\n\
        <|im_start|>user\nwhy<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(tokenizer.decode(&lowered.prompt, false), written);
    let bos = tokenizer.bos().expect("a BOS");
    let count = |id: u32| lowered.prompt.iter().filter(|t| **t == id).count();
    assert_eq!((lowered.prompt[0], count(bos)), (bos, 1));
    let turn = tokenizer.token_id("<|im_start|>").expect("a token");
    assert_eq!(count(turn), 5, "special tokens are tokens, not characters");

    let request = request();
    assert_eq!(lowered.stop_ids, tokenizer.eos_ids());
    assert!(!lowered.stop_ids.is_empty());
    assert_eq!(lowered.max_tokens, request.max_tokens);
    assert_eq!(lowered.stop, request.stop);
    assert_eq!(lowered.logprobs, request.logprobs);
    assert!(lowered.skip_special && lowered.fresh_text);
}

#[test]
fn variables_reach_the_template() {
    let mut request = request();
    request
        .template_variables
        .insert("mood".into(), "grim".into());
    let lowered = chat("{{ mood }}").lower(request).expect("lowered");
    assert_eq!(tokenizer().decode(&lowered.prompt, false), "grim");
}

#[test]
fn what_cannot_be_written_down_is_refused() {
    let without = Chat::new(tokenizer(), None).lower(request());
    let error = without.expect_err("no template");
    assert!(matches!(error, ChatError::NoTemplate));
    assert!(error.to_string().contains("`generate`"), "{error}");

    let empty = ChatRequest {
        messages: Vec::new(),
        ..request()
    };
    let error = chat(TURNS).lower(empty).expect_err("nothing said");
    assert!(matches!(error, ChatError::NoMessages));
    assert_eq!(error.blame(), Blame::Request);

    let strict = chat("{{ raise_exception('turns must alternate') }}");
    let error = strict.lower(request()).expect_err("raised");
    assert_eq!(error.to_string(), "turns must alternate");
}

#[test]
fn a_reply_ends_at_the_models_own_end() {
    let tokenizer = tokenizer();
    let template = ChatTemplate::from_huggingface(Path::new(GOLDEN)).expect("a template");
    let chat = Chat::new(tokenizer.clone(), Some(template));
    let mut conversation = Conversation::new(None);
    conversation.push_user("hi");
    let lowered = chat
        .lower(ChatRequest {
            messages: conversation.messages(),
            max_tokens: 40,
            sampling: SamplingParams::greedy(),
            ..ChatRequest::default()
        })
        .expect("lowered");

    let reply = tokenizer
        .encode("hello<|eos|>", Special::RENDERED)
        .expect("tokens");
    // The script counts from the sequence's first token, so it is turned to start at the reply.
    let mut script = reply.clone();
    script.rotate_right((lowered.prompt.len() - 1) % reply.len());
    let session = FakeSession::new(FakeOptions {
        vocab_size: tokenizer.vocab_size(),
        script,
        ..FakeOptions::default()
    });
    let engine = Engine::start(Box::new(session), Some(tokenizer), EngineOptions::default())
        .expect("an engine");
    let generation = engine.submit(lowered).expect("accepted");
    let completion = generation.collect_blocking().expect("finished");
    assert_eq!(completion.text, "hello");
    assert_eq!(completion.reason, FinishReason::Stop);
    assert_eq!(completion.usage.completion_tokens, 6);
}
