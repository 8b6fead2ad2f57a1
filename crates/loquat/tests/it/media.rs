//! Images and videos in chats, on the tiny checkpoints of `crates/testkit/goldens-vision`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use loquat::{
    BackendChoice, ChatRequest, ContentPart, Continuation, Detail, Error, Image, KvFormat, Message,
    Model, ModelOptions, Precision, PromptEmbeddings, Role, Video,
};
use loquat_chat::{ChatError, Raster};
use loquat_media::Limits;
use loquat_testkit::gif::animated_gif;
use loquat_testkit::goldens;
use loquat_text::ChatTemplate;
use loquat_weights::decode::decode_row;
use loquat_weights::{Blob, safetensors};
use serde_json::Value;

const CASES: [&str; 4] = ["one", "two", "text", "video"];

/// Writes images and videos as Qwen's templates do.
const TEMPLATE: &str = "{% for message in messages %}\
    {% if message.content is string %}{{ message.content }}{% else %}\
    {% for part in message.content %}\
    {% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>\
    {% elif part.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>\
    {% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}";

fn load(folder: &Path, template: &str) -> Model {
    load_on(BackendChoice::CPU, folder, template)
}

fn load_on(backend: BackendChoice, folder: &Path, template: &str) -> Model {
    let options = ModelOptions {
        backend,
        ..options(template)
    };
    options.load(folder.to_str().unwrap()).unwrap()
}

fn options(template: &str) -> ModelOptions {
    let mut options = ModelOptions {
        backend: BackendChoice::CPU,
        template: Some(ChatTemplate::new(template).unwrap()),
        ..ModelOptions::default()
    };
    options.session.precision = Precision::Reference;
    options.session.kv_format = Some(KvFormat::F32);
    options
}

fn qwen() -> (Model, PathBuf) {
    let folder = goldens::vision();
    (
        load(&folder.join("qwen3_vl"), TEMPLATE),
        folder.join("images"),
    )
}

fn image(images: &Path, name: &str) -> Image {
    Image::open(images.join(name)).unwrap()
}

fn integers(folder: &Path, name: &str) -> Option<Vec<u32>> {
    let path = folder.join("golden.safetensors");
    let tensors = safetensors::parse(Blob::map(&path).unwrap(), &path).unwrap();
    let tensor = tensors.iter().find(|tensor| tensor.name == name)?;
    let count: usize = tensor.shape.iter().product();
    let data: &[u8] = &tensor.data;
    let each = data.len() / count;
    let number = |bytes: &[u8]| u32::from_le_bytes(bytes[..4].try_into().unwrap());
    Some(data.chunks(each).map(number).collect())
}

/// Files go in, and the tokens of transformers come out.
#[test]
fn images_and_videos_give_the_reference_answers() {
    assert_reference_answers(BackendChoice::CPU);
}

#[test]
fn mlx_gives_the_reference_answers_for_media() {
    let mlx: BackendChoice = "mlx".parse().unwrap();
    match mlx.resolve() {
        Ok(_) => assert_reference_answers(mlx),
        Err(why) => eprintln!("not tested: {why}"),
    }
}

fn assert_reference_answers(backend: BackendChoice) {
    let goldens = goldens::vision();
    let mut cases = 0;
    let mut wrong = Vec::new();
    for entry in std::fs::read_dir(&goldens).unwrap() {
        let folder = entry.unwrap().path();
        let Ok(facts) = std::fs::read(folder.join("golden.json")) else {
            continue;
        };
        let facts: Value = serde_json::from_slice(&facts).unwrap();
        for case in CASES {
            let Some(expected) = integers(&folder, &format!("{case}.greedy_ids")) else {
                continue;
            };
            let prompt = facts["prompts"][case].as_str().unwrap();
            let model = load_on(backend, &folder, prompt);
            let names = facts["images"][case].as_array().unwrap();
            let files = names
                .iter()
                .map(|name| goldens.join("images").join(name.as_str().unwrap()));
            let mut parts: Vec<ContentPart> = if case == "video" {
                let limits = Limits::default();
                let frames = files
                    .map(|file| Raster::decode(&std::fs::read(file).unwrap(), &limits).unwrap());
                let fps = facts["video"]["fps"].as_f64();
                vec![Video::from_frames(frames.collect(), fps).unwrap().into()]
            } else {
                files
                    .map(|file| Image::open(file).unwrap().into())
                    .collect()
            };
            parts.push("?".into());
            let request = ChatRequest {
                messages: vec![Message::user(parts)],
                // The prompt's own markers are the template's.
                read_special: true,
                ..ChatRequest::default()
            };
            let name = format!("{} {case}", folder.file_name().unwrap().to_string_lossy());
            let context = model.chat_context();
            let ids = integers(&folder, &format!("{case}.input_ids")).unwrap();
            let counted = match context.tokens(&request, true) {
                Ok(counted) => counted,
                Err(error) => {
                    wrong.push(format!("{name}: {error}"));
                    continue;
                }
            };
            if counted != ids {
                wrong.push(format!("{name}: {counted:?} for {ids:?}"));
                continue;
            }
            let mut generate = context.lower(request).unwrap().generate;
            generate.max_tokens = expected.len();
            generate.sampling.temperature = 0.0;
            generate.stop_ids.clear();
            let generation = model.engine().submit(generate).unwrap();
            let outcome = generation.collect_blocking();
            match outcome {
                Ok(done) => {
                    let found: Vec<u32> = done.tokens.iter().map(|token| token.id).collect();
                    if found != expected {
                        wrong.push(format!("{name}: {found:?}, not {expected:?}"));
                    }
                    assert_eq!(done.usage.prompt_tokens, ids.len(), "{name}");
                }
                Err(error) => wrong.push(format!("{name}: {error}")),
            }
            cases += 1;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(cases >= 60, "{cases}");
}

#[test]
fn equal_images_share_one_encoding() {
    let (model, images) = qwen();
    let encoded = || model.engine().stats().totals.media_encoded;
    let ask = |image: Image| {
        let chat = model.chat("What is this?").image(image);
        chat.max_tokens(12).temperature(0.0).text().unwrap()
    };
    let first = ask(image(&images, "img1_90x61.png"));
    assert_eq!(encoded(), 1);
    assert_eq!(ask(image(&images, "img1_90x61.png")), first);
    assert_eq!(encoded(), 1);
    // The same size, so equal placeholders.
    let other = ask(image(&images, "frame0_90x61.png"));
    assert_ne!(other, first);
    assert_eq!(encoded(), 2);
    assert_eq!(ask(image(&images, "img1_90x61.png")), first);
    assert_eq!(encoded(), 2);
    // Decoded pixels are the same image.
    let bytes = std::fs::read(images.join("img1_90x61.png")).unwrap();
    let raster = Raster::decode(&bytes, &Limits::default()).unwrap();
    let pixels = raster.rgb().to_vec();
    let pixels = Image::from_rgb8(raster.width(), raster.height(), pixels).unwrap();
    assert_eq!(ask(pixels), first);
    assert_eq!(encoded(), 2);
}

#[test]
fn usage_counts_positions_of_media() {
    let (model, images) = qwen();
    let prompt_tokens = |message: Message| {
        let chat = model.converse(vec![message]).max_tokens(1).temperature(0.0);
        let mut answer = chat.stream().unwrap();
        answer.by_ref().for_each(|event| drop(event.unwrap()));
        answer.finish().unwrap().usage.prompt_tokens
    };
    let text = prompt_tokens(Message::user("hi"));
    let picture = image(&images, "img1_90x61.png");
    let with_image = prompt_tokens(Message::user(vec![picture.into(), "hi".into()]));
    assert!(with_image > text + 2, "{with_image} and {text}");
}

#[test]
fn text_in_messages_is_never_a_placeholder() {
    let (model, images) = qwen();
    let picture = image(&images, "img0_48x48.png");
    let parts = vec![picture.into(), "<|image_pad|> <|video_pad|>".into()];
    let request = ChatRequest {
        messages: vec![Message::user(parts)],
        ..ChatRequest::default()
    };
    let context = model.chat_context();
    let generate = context.lower(request).unwrap().generate;
    assert_eq!(generate.media.len(), 1);
    let marker = context.tokenizer().token_id("<|video_pad|>").unwrap();
    assert!(!generate.prompt.contains(&marker));
}

#[test]
fn template_without_images_gets_markers() {
    let goldens = goldens::vision();
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}";
    let model = load(&goldens.join("llava"), template);
    let request = ChatRequest {
        messages: vec![Message::user(vec![
            image(&goldens.join("images"), "img0_48x48.png").into(),
            "What?".into(),
        ])],
        ..ChatRequest::default()
    };
    let generate = model.chat_context().lower(request).unwrap().generate;
    assert_eq!((generate.media.len(), generate.media[0].at), (1, 0));
    assert!(model.inputs().images && !model.inputs().videos);
}

#[test]
fn unusable_images_are_refused_by_place() {
    let (model, images) = qwen();
    let refuse = |message: Message| {
        let messages = vec![Message::user("hi"), message];
        let request = ChatRequest {
            messages,
            ..ChatRequest::default()
        };
        model.chat_context().lower(request).unwrap_err()
    };
    let broken = Image::from_bytes(b"not an image".to_vec());
    let error = refuse(Message::user(vec!["a".into(), broken.clone().into()]));
    assert!(
        matches!(error, ChatError::Media { ref field, .. } if field == "messages[1].content[1]")
    );
    let error = refuse(Message::user(vec![broken.with_field("images[0]").into()]));
    assert!(error.to_string().starts_with("`images[0]`: "), "{error}");
    let picture = image(&images, "img0_48x48.png");
    let error = refuse(Message::new(Role::System, vec![picture.into()]));
    assert!(
        matches!(error, ChatError::MediaUnsupported { .. }),
        "{error}"
    );
}

#[test]
fn media_that_do_not_fit_are_refused_before_decoding() {
    let goldens = goldens::vision();
    let folder = goldens.join("qwen3_vl");
    let open = |change: fn(&mut ModelOptions)| {
        let mut options = options(TEMPLATE);
        change(&mut options);
        options.load(folder.to_str().unwrap()).unwrap()
    };
    let short_context = open(|options| options.session.context = Some(64));
    let few_positions = open(|options| options.session.media_positions = Some(48));
    // A hundred seconds, of which each has at least a position.
    let clip = animated_gif(32, 32, 400, 1);
    let picture = image(&goldens.join("images"), "img1_90x61.png");
    let video = || ContentPart::from(Video::from_bytes(clip.clone()));
    let album: Vec<ContentPart> = (0..20).map(|_| picture.clone().into()).collect();
    for (model, parts, last) in [
        (&short_context, vec![video(), "?".into()], false),
        (&few_positions, vec![video(), "?".into()], false),
        (&short_context, album, true),
    ] {
        let request = ChatRequest {
            messages: vec![Message::user(parts)],
            ..ChatRequest::default()
        };
        let error = model.chat_context().lower(request).unwrap_err();
        let ChatError::MediaTooLong {
            field,
            positions,
            room,
        } = &error
        else {
            panic!("{error}");
        };
        assert_eq!(field != "messages[0].content[0]", last, "{error}");
        assert!(positions > room && *room <= 64, "{error}");
        assert_eq!(model.engine().stats().totals.media_encoded, 0);
    }
    // What fits is answered.
    let short = Video::from_bytes(animated_gif(48, 48, 4, 1));
    let ask = Message::user(vec![short.into(), "?".into()]);
    let chat = short_context.converse(vec![ask]).max_tokens(2);
    chat.text().unwrap();
    assert_eq!(short_context.engine().stats().totals.media_encoded, 1);
}

#[test]
fn images_of_earlier_turns_are_not_preprocessed_again() {
    let (model, images) = qwen();
    let lower = |parts: Vec<ContentPart>| {
        let request = ChatRequest {
            messages: vec![Message::user(parts)],
            ..ChatRequest::default()
        };
        let generate = model.chat_context().lower(request).unwrap().generate;
        let contents = generate.media.into_iter().map(|media| media.content);
        contents.collect::<Vec<_>>()
    };
    let picture = || ContentPart::from(image(&images, "img1_90x61.png"));
    let clip = || ContentPart::from(Video::from_bytes(animated_gif(48, 48, 4, 1)));
    let first = lower(vec![picture(), clip()]);
    let again = lower(vec![picture(), clip(), "more".into()]);
    assert_eq!(first.len(), again.len());
    for (first, again) in first.iter().zip(&again) {
        assert!(Arc::ptr_eq(first, again));
    }
    let other = lower(vec![image(&images, "frame0_90x61.png").into()]);
    assert!(!Arc::ptr_eq(&first[0], &other[0]));
}

#[test]
fn embeddings_of_tokens_continue_like_the_tokens() {
    let (model, images) = qwen();
    let folder = images.with_file_name("qwen3_vl");
    let tensors = safetensors::open(&folder.join("model.safetensors")).unwrap();
    let mut matrices = tensors.iter();
    let matrix = matrices.find(|tensor| tensor.name.ends_with("embed_tokens.weight"));
    let matrix = matrix.unwrap();
    let [vocab, width] = matrix.shape[..] else {
        panic!("{:?}", matrix.shape);
    };
    let mut values = vec![0.0; vocab * width];
    decode_row(matrix.dtype, &matrix.data, &mut values).unwrap();
    let embedded = |text: &str| {
        let tokens = model.tokenize(text).unwrap().into_iter();
        let rows = tokens.map(|token| &values[token as usize * width..][..width]);
        PromptEmbeddings::new(rows.collect::<Vec<_>>().concat(), width).unwrap()
    };
    let finish = |continuation: Continuation| {
        let answer = continuation.max_tokens(12).temperature(0.0);
        answer.text().unwrap()
    };
    let expected = finish(model.complete("A river is"));
    assert_eq!(
        finish(model.complete("").embeddings(embedded("A river is"))),
        expected
    );
    // Text may follow.
    assert_eq!(
        finish(model.complete(" is").embeddings(embedded("A river"))),
        expected
    );
    assert_ne!(
        finish(model.complete("").embeddings(embedded("A mountain is"))),
        expected
    );
    let narrow = PromptEmbeddings::new(vec![0.0; width], width / 2).unwrap();
    let error = model.complete("").embeddings(narrow).text().unwrap_err();
    assert!(matches!(error, Error::PromptEmbeddings(_)), "{error}");
}

#[test]
fn low_detail_takes_fewer_positions() {
    let goldens = goldens::vision();
    let model = load(
        &goldens.join("pixtral"),
        "{% for m in messages %}{{ m.content }}{% endfor %}",
    );
    let side = 1024;
    let positions = |detail: Detail| {
        let image = Image::from_rgb8(side, side, vec![9; (side * side * 3) as usize]).unwrap();
        let request = ChatRequest {
            messages: vec![Message::user(vec![image.with_detail(detail).into()])],
            ..ChatRequest::default()
        };
        model.chat_context().tokens(&request, true).unwrap().len()
    };
    assert!(positions(Detail::Low) <= positions(Detail::Full));
}

#[test]
fn text_only_model_refuses_images() {
    let model = crate::model();
    assert_eq!(model.inputs(), Default::default());
    let image = Image::from_bytes(vec![1, 2, 3]);
    let error = model.chat("What is this?").image(image).text().unwrap_err();
    let Error::Chat(ChatError::MediaUnsupported { field, .. }) = error else {
        panic!("{error}");
    };
    assert_eq!(field, "messages[0].content[0]");
}
