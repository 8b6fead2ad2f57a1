//! Images and videos on the command line, with a tiny checkpoint of `crates/testkit/goldens-vision`.

use std::path::PathBuf;

use loquat_testkit::gif::animated_gif;
use loquat_testkit::goldens;

use crate::support::{Outcome, command, golden, loquat, piped};

/// The checkpoint has none. Writes images and videos as Qwen's templates do.
const TEMPLATE: &str = "{% for message in messages %}\
    {% if message.content is string %}{{ message.content }}{% else %}\
    {% for part in message.content %}\
    {% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>\
    {% elif part.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>\
    {% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}";

struct TinyVision {
    folder: tempfile::TempDir,
    images: PathBuf,
}

impl TinyVision {
    /// A copy of the checkpoint with a chat template.
    fn new() -> Self {
        let goldens = goldens::vision();
        let folder = tempfile::tempdir().unwrap();
        for entry in std::fs::read_dir(goldens.join("qwen3_vl")).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap();
            std::fs::copy(&path, folder.path().join(name)).unwrap();
        }
        std::fs::write(folder.path().join("chat_template.jinja"), TEMPLATE).unwrap();
        Self {
            folder,
            images: goldens.join("images"),
        }
    }

    fn model(&self) -> &str {
        self.folder.path().to_str().unwrap()
    }

    fn image(&self, name: &str) -> String {
        self.images.join(name).to_str().unwrap().to_owned()
    }
}

#[test]
fn images_are_files_or_stdin() {
    let tiny = TinyVision::new();
    let ask = |words: &[&str]| {
        let mut all = vec!["run", tiny.model(), "-n", "12", "-t", "0"];
        all.extend(words);
        loquat(all).quiet()
    };
    let (one, other) = (tiny.image("img1_90x61.png"), tiny.image("frame0_90x61.png"));
    let answer = ask(&["--image", &one, "What is this?"]);
    assert_ne!(ask(&["--image", &other, "What is this?"]), answer);
    assert_ne!(
        ask(&["--image", &one, "--image", &other, "What is this?"]),
        answer
    );
    let bytes = std::fs::read(&one).unwrap();
    let words = [
        "run",
        tiny.model(),
        "-n",
        "12",
        "-t",
        "0",
        "--image",
        "-",
        "What is this?",
    ];
    assert_eq!(piped(&words, &bytes).quiet(), answer);
}

/// The experimental backend warns on stderr. A build without it is covered by the tests of backends.
#[test]
fn backends_give_the_same_answer() {
    let list = loquat(["backends"]).quiet();
    let mlx = list.lines().find(|line| line.starts_with("mlx ")).unwrap();
    if mlx.contains(" unavailable ") {
        eprintln!("not tested: {mlx}");
        return;
    }
    let tiny = TinyVision::new();
    let cache = tempfile::tempdir().unwrap();
    let ask = |backend: &str, image: &str| {
        let image = tiny.image(image);
        let words = [
            "run",
            tiny.model(),
            "-n",
            "12",
            "-t",
            "0",
            "--precision",
            "reference",
        ];
        let mut command = command(cache.path());
        command
            .args(words)
            .args(["--backend", backend, "--image", &image]);
        let outcome = Outcome::from(command.arg("What is this?").output().unwrap());
        assert_eq!(outcome.code, 0, "{}", outcome.stderr);
        outcome.stdout
    };
    let answers = ["img1_90x61.png", "frame0_90x61.png"].map(|image| {
        let answer = ask("mlx", image);
        assert_eq!(answer, ask("cpu", image), "{image}");
        answer
    });
    assert_ne!(answers[0], answers[1]);
}

#[test]
fn unusable_images_are_refused() {
    let tiny = TinyVision::new();
    let image = tiny.image("img0_48x48.png");
    let text_only = golden("llama");
    loquat(["run", &text_only, "--image", &image, "What is this?"])
        .refused(4, &["--image", "reads text only"]);
    loquat(["run", tiny.model(), "--image", "missing.png", "What?"]).refused(2, &["--image"]);
    let config = tiny.folder.path().join("config.json");
    let config = config.to_str().unwrap();
    loquat(["run", tiny.model(), "--image", config, "What?"])
        .refused(2, &["--image", "not an image"]);
    piped(&["run", tiny.model(), "--image", "-"], b"").refused(2, &["--image -"]);
}

#[test]
fn videos_are_files_or_stdin() {
    let tiny = TinyVision::new();
    let clip = |name: &str, kind| {
        let path = tiny.folder.path().join(name);
        std::fs::write(&path, animated_gif(90, 61, 8, kind)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (one, other) = (clip("one.gif", 1), clip("other.gif", 2));
    let base = ["run", tiny.model(), "-n", "12", "-t", "0"];
    let question = ["What happens?"];
    let ask = |media: &[&str]| loquat([&base[..], media, &question].concat()).quiet();
    let answer = ask(&["--video", &one]);
    assert_ne!(ask(&["--video", &other]), answer);
    assert_ne!(ask(&["--video", &one, "--video", &other]), answer);
    // As an image, it is its first frame.
    assert_ne!(ask(&["--image", &one]), answer);
    let from_stdin = [&base[..], &["--video", "-"], &question].concat();
    let bytes = std::fs::read(&one).unwrap();
    assert_eq!(piped(&from_stdin, &bytes).quiet(), answer);
}

#[test]
fn unusable_videos_are_refused() {
    let tiny = TinyVision::new();
    let clip = tiny.folder.path().join("clip.gif");
    std::fs::write(&clip, animated_gif(90, 61, 8, 1)).unwrap();
    let clip = clip.to_str().unwrap();
    let goldens = goldens::vision();
    let images_only = goldens.join("llava");
    let chatml = ["--template", "chatml"];
    let images_only = [
        "run",
        images_only.to_str().unwrap(),
        "--video",
        clip,
        "What?",
    ];
    loquat([&images_only[..], &chatml].concat()).refused(4, &["--video", "does not accept video"]);
    loquat(["run", &golden("llama"), "--video", clip, "What?"])
        .refused(4, &["--video", "reads text only"]);
    loquat(["run", tiny.model(), "--video", "missing.gif", "What?"]).refused(2, &["--video"]);
    piped(
        &["run", tiny.model(), "--image", "-", "--video", "-", "What?"],
        b"",
    )
    .refused(2, &["stdin is one file"]);
    let short = [
        "run",
        tiny.model(),
        "--media-positions",
        "2",
        "--video",
        clip,
        "What?",
    ];
    loquat(short).refused(4, &["media", "at most 2"]);
}

#[test]
fn tower_can_be_left_unloaded() {
    let tiny = TinyVision::new();
    let planned = |positions: &str| {
        let words = [
            "inspect",
            tiny.model(),
            "--json",
            "--media-positions",
            positions,
        ];
        let json: serde_json::Value = serde_json::from_str(&loquat(words).quiet()).unwrap();
        let numbers = [&json["vision"]["media_positions"], &json["weight_bytes"]];
        numbers.map(|number| number.as_u64().unwrap())
    };
    let (without, with) = (planned("0"), planned("4096"));
    assert_eq!((without[0], with[0]), (0, 4096));
    assert!(without[1] < with[1]);
}

#[test]
fn inspect_shows_the_tower() {
    let tiny = TinyVision::new();
    let shown = loquat(["inspect", tiny.model()]).quiet();
    for words in [
        "vision tower",
        "processor",
        "Qwen3VLProcessor",
        "images and video",
    ] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    let json = loquat(["inspect", tiny.model(), "--json"]).quiet();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["vision"]["processor"], "Qwen3VLProcessor");
    assert_eq!(json["vision"]["video"], true);
}
