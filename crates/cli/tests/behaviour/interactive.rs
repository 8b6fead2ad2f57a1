//! Conversations, on a real terminal.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Altered, Files, LETTER_A, TEMPLATE, WEATHER, command, golden};
use crate::terminal::{ALT_ENTER, BACKSPACE, CTRL_C, CTRL_D, ENTER, PROMPT, TAB, Terminal, UP};

/// `run` with a model that says nothing but `A`.
fn letters(cache: &Path, model: &str, flags: &[&str]) -> Command {
    let mut command = command(cache);
    command.args(["run", model]).args(flags);
    command.arg(format!("--logit-bias={LETTER_A}=100"));
    command
}

/// A conversation with the tiny model, which says four letters.
fn chat(cache: &TempDir) -> Terminal {
    Terminal::start(&letters(cache.path(), &golden("llama"), &["-n", "4"]))
}

fn number_before(text: &str, what: &str) -> usize {
    let (before, _) = text
        .rsplit_once(what)
        .unwrap_or_else(|| panic!("no {what} in {text}"));
    let digits = before
        .rsplit(|letter: char| !letter.is_ascii_digit())
        .next();
    digits.unwrap().parse().unwrap()
}

#[test]
fn a_conversation_remembers_until_it_is_cleared() {
    let cache = TempDir::new().unwrap();
    let flags = ["-v", "-n", "4"];
    let mut terminal = Terminal::start(&letters(cache.path(), &golden("llama"), &flags));
    let prompt = |heard: &str| {
        assert!(heard.starts_with("AAAA\n"), "{heard}");
        let (_, line) = heard.split_once("prompt ").unwrap();
        number_before(&line[..line.find(" tokens").unwrap() + 7], " tokens")
    };
    let first = prompt(&terminal.hear("first question"));
    let heard = terminal.hear("other question");
    let second = prompt(&heard);
    assert!(
        second >= first + "AAAAother question".len(),
        "{second} after {first}"
    );
    let kept = number_before(&heard, " kept from before");
    assert!(kept >= first, "only {kept} of {first} were kept: {heard}");
    terminal.hear("/clear");
    assert_eq!(prompt(&terminal.hear("first question")), first);
    terminal.press(CTRL_D);
    assert_eq!(terminal.ends().0, 0);
}

#[test]
fn words_come_as_they_are_said() {
    let (cache, model) = (TempDir::new().unwrap(), Altered::endless());
    let flags = ["-n", "150000"];
    let mut terminal = Terminal::start(&letters(cache.path(), model.path(), &flags));
    let count = |terminal: &Terminal| terminal.screen().matches('A').count();
    terminal.say("go");
    for more in [10, 50, 200] {
        terminal.wait("more letters", |terminal| count(terminal) > more);
        assert!(
            !terminal.screen().contains("tokens/s"),
            "it is over already"
        );
    }
    terminal.press(CTRL_C);
    terminal.expect("stopped");
    terminal.leave();
}

#[test]
fn commands_are_answered_and_not_asked() {
    let cache = TempDir::new().unwrap();
    let mut terminal = chat(&cache);
    assert!(terminal.hear("/help").contains("/clear  "));
    assert!(
        terminal
            .hear("/nope")
            .contains("there is no /nope; /help lists")
    );
    assert!(
        terminal
            .hear("/systme Be kind.")
            .contains("did you mean /system?")
    );
    let (row, _) = terminal.cursor();
    terminal.press(ENTER);
    terminal.wait("another prompt", |terminal| terminal.cursor().0 > row);
    terminal.ready();
    assert!(!terminal.screen().contains("AAAA"));
    // More than one word is something to say, whatever it starts with.
    assert!(terminal.hear("/etc is what?").starts_with("AAAA"));
    terminal.leave();
}

#[test]
fn ctrl_c_stops_the_answer_and_twice_the_program() {
    let (cache, model) = (TempDir::new().unwrap(), Altered::endless());
    let command = letters(cache.path(), model.path(), &["-n", "150000"]);
    let mut terminal = Terminal::start(&command);
    for question in ["one", "two"] {
        terminal.say(question);
        terminal.expect(&format!("{PROMPT}{question}\nAAAA"));
        terminal.press(CTRL_C);
        terminal.ready();
        // It is not held against the line that is typed next.
        terminal.type_in("given up");
        terminal.press(CTRL_C);
        terminal.ready();
    }
    let file = cache.path().join("talk.json");
    terminal.hear(&format!("/save {}", file.display()));
    let said: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    assert_eq!(said.as_array().unwrap().len(), 4, "{said}");
    assert!(
        said[1]["content"].as_str().unwrap().starts_with("AAAA"),
        "{said}"
    );

    // A machine that is too busy to be pressed twice in time is given another chance.
    loop {
        terminal.say("go on");
        terminal.expect(&format!("{PROMPT}go on\nAAAA"));
        let pressed = Instant::now();
        terminal.press(CTRL_C);
        terminal.ready();
        if pressed.elapsed() < Duration::from_secs(1) {
            break;
        }
    }
    terminal.press(CTRL_C);
    let (code, screen) = terminal.ends();
    assert_eq!(code, 130, "{screen}");
}

#[test]
fn ctrl_c_at_an_empty_prompt_tells_how_to_leave_and_then_leaves() {
    let cache = TempDir::new().unwrap();
    let mut terminal = chat(&cache);
    terminal.type_in("given up");
    terminal.press(CTRL_C);
    terminal.ready();
    assert!(
        !terminal.screen().contains("leaves"),
        "{}",
        terminal.screen()
    );
    terminal.press(CTRL_C);
    terminal.expect("Ctrl-C again, Ctrl-D or /exit leaves.");
    terminal.ready();
    terminal.press(CTRL_C);
    let (code, screen) = terminal.ends();
    assert_eq!(code, 130, "{screen}");
    assert!(!screen.contains("AAAA"), "{screen}");
}

/// A model whose loading never ends; gives what it waits for.
fn stuck() -> Altered {
    let model = Altered::from("llama").without("tokenizer.json");
    let pipe = model.file("tokenizer.json");
    assert!(
        Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    model
}

/// Waits until a stuck model is being read, which goes on until the file is dropped.
fn hold(model: &Altered) -> fs::File {
    let mut options = fs::File::options();
    let pipe = options.write(true).open(model.file("tokenizer.json"));
    pipe.unwrap()
}

#[test]
fn ctrl_c_while_loading_leaves_at_once() {
    let (cache, model) = (TempDir::new().unwrap(), stuck());
    let mut loading = Terminal::start(&letters(cache.path(), model.path(), &[]));
    let held = hold(&model);
    loading.press(CTRL_C);
    assert_eq!(loading.ends().0, 130);
    drop(held);
}

#[test]
fn ctrl_c_while_switching_warns_before_it_leaves() {
    let (cache, files, model) = (TempDir::new().unwrap(), Files::new(), stuck());
    let warning = "Press Ctrl-C again to leave; the conversation is not saved.";
    let mut terminal = chat(&cache);
    terminal.hear("one");
    terminal.say(&format!("/model {}", model.path()));
    let held = hold(&model);
    terminal.press(CTRL_C);
    terminal.expect(warning);
    // Half a tokenizer is none, and the conversation goes on where it was.
    drop(held);
    terminal.ready();
    assert_eq!(questions(&saved(&mut terminal, &files)), ["one"]);

    terminal.press("\x0c");
    terminal.say(&format!("/model {}", model.path()));
    let held = hold(&model);
    terminal.press(CTRL_C);
    terminal.expect(warning);
    terminal.press(CTRL_C);
    let (code, screen) = terminal.ends();
    assert_eq!(code, 130, "{screen}");
    drop(held);
}

#[test]
fn ctrl_c_before_anything_is_said_takes_the_question_back() {
    let (cache, files, model) = (TempDir::new().unwrap(), Files::new(), Altered::endless());
    // It thinks, and never comes to an end of it.
    let template = files.write("template.jinja", TEMPLATE);
    let flags = ["--template", &template, "-n", "150000"];
    let mut terminal = Terminal::start(&letters(cache.path(), model.path(), &flags));
    terminal.say("why?");
    terminal.expect(&format!("{PROMPT}why?\nAAAA"));
    terminal.press(CTRL_C);
    terminal.expect("The question is taken back.");
    terminal.ready();
    assert_eq!(saved(&mut terminal, &files), Value::Array(Vec::new()));
    // What was answered once is not lost by asking again.
    let before = r#"[{"role":"user","content":"one"},{"role":"assistant","content":"1"}]"#;
    terminal.hear(&format!("/load {}", files.write("before.json", before)));
    terminal.press("\x0c/retry\r");
    terminal.expect(&format!("{PROMPT}/retry\nAAAA"));
    terminal.press(CTRL_C);
    terminal.expect("The question is taken back.");
    terminal.ready();
    assert_eq!(saved(&mut terminal, &files).to_string(), before);
    terminal.leave();
}

#[test]
fn a_full_context_is_told_and_cleared() {
    let cache = TempDir::new().unwrap();
    let flags = ["-n", "20", "--context=100"];
    let mut terminal = Terminal::start(&letters(cache.path(), &golden("llama"), &flags));
    let question = "a question of some length";
    assert!(terminal.hear(question).starts_with("AAAA"));
    let refused = terminal.hear("a second of the same length");
    assert!(refused.starts_with("error: "), "{refused}");
    assert!(
        refused.contains("context of 100; /clear starts over"),
        "{refused}"
    );
    terminal.hear("/clear");
    assert!(terminal.hear(question).starts_with("AAAA"));
    terminal.leave();
}

#[test]
fn what_makes_no_conversation_is_refused_at_once() {
    let cache = TempDir::new().unwrap();
    let mute = Altered::mute();
    let llama = golden("llama");
    let cases: [(&str, &[&str], i32, &str); 2] = [
        (mute.path(), &[], 4, "chat template"),
        (
            &llama,
            &["--output=json"],
            2,
            "`--output` of a conversation",
        ),
    ];
    for (model, flags, code, words) in cases {
        let terminal = Terminal::start(&letters(cache.path(), model, flags));
        let (found, screen) = terminal.ends();
        assert_eq!(found, code, "{screen}");
        assert!(
            screen.starts_with("error: ") && screen.contains(words),
            "{screen}"
        );
        assert!(!screen.contains(PROMPT), "{screen}");
    }
}

#[test]
fn control_characters_of_a_model_stay_off_the_terminal() {
    let cache = TempDir::new().unwrap();
    let mut command = command(cache.path());
    // The token that writes an escape byte.
    command.args(["run", &golden("llama"), "-n4", "--logit-bias=215=100"]);
    let mut terminal = Terminal::start(&command);
    terminal.hear("hi");
    let raw = String::from_utf8_lossy(&terminal.raw).into_owned();
    assert!(
        raw.contains("\r\n\u{fffd}\u{fffd}\u{fffd}\u{fffd}\r\n"),
        "{raw:?}"
    );
    terminal.leave();
}

#[test]
fn a_person_plays_the_tools() {
    let (cache, files) = (TempDir::new().unwrap(), Files::new());
    // Tools in words take more than the tiny model's own context.
    let model = Altered::endless();
    let tools = files.write("tools.json", WEATHER);
    let flags = [
        "--tools",
        &tools,
        "--tool-choice=required",
        "--no-parallel-tool-calls",
        "--reasoning-format=none",
        "-n150",
    ];
    let mut terminal = Terminal::start(&letters(cache.path(), model.path(), &flags));
    let asked = |terminal: &Terminal| terminal.line() == "get_weather =";
    terminal.say("Is it raining?");
    terminal.expect("→ get_weather {\"city\": ");
    terminal.wait("tool's prompt", asked);
    terminal.press("It is.\r");
    terminal.expect("AAAA");
    terminal.say("And now?");
    terminal.wait("tool's prompt", asked);
    terminal.press(CTRL_C);
    terminal.expect("taken back");
    // What was taken back is not in the way of what comes next.
    terminal.say("And then?");
    terminal.wait("tool's prompt", asked);
    terminal.press("No.\r");
    terminal.leave();
}

/// Thinks six letters, then says ten.
fn thinker(cache: &TempDir, files: &Files, flags: &[&str]) -> Command {
    let template = files.write("template.jinja", TEMPLATE);
    let thinks = ["--template", &template, "--thinking-budget=6", "-n16"];
    letters(cache.path(), &golden("llama"), &[&thinks, flags].concat())
}

#[test]
fn thinking_is_dimmed() {
    let (cache, files) = (TempDir::new().unwrap(), Files::new());
    let mut terminal = Terminal::start(&thinker(&cache, &files, &[]));
    let heard = terminal.hear("hi");
    let (thought, said) = heard.split_once('\n').unwrap();
    assert_eq!(thought, "AAAAAA");
    assert!(said.starts_with("AAAA"), "{heard}");
    assert!(terminal.is_dim("AAAAAA"));
    assert!(!heard.contains("think>"), "{heard}");
    terminal.leave();
}

#[test]
fn thinking_is_folded_hidden_and_shown_again() {
    let (cache, files) = (TempDir::new().unwrap(), Files::new());
    let command = thinker(&cache, &files, &["--show-reasoning=folded"]);
    let mut terminal = Terminal::start(&command);
    let heard = terminal.hear("hi");
    let (line, said) = heard.split_once('\n').unwrap();
    assert!(line.starts_with("thought for "), "{heard}");
    let tokens = number_before(line, " tokens)");
    // Those that close it may come together with the first words.
    assert!((6..16).contains(&tokens), "{heard}");
    assert!(said.starts_with("AAAA"), "{heard}");
    assert!(terminal.is_dim("thought for"));
    // It counted meanwhile.
    let raw = String::from_utf8_lossy(&terminal.raw).into_owned();
    assert!(raw.contains("thinking… "), "{raw:?}");

    assert_eq!(terminal.hear("/reasoning"), "AAAAAA");
    assert_eq!(terminal.hear("/reasoning hidden"), "");
    assert!(terminal.hear("again").starts_with("AAAA"));
    assert_eq!(terminal.hear("/set show_reasoning full"), "");
    assert!(terminal.hear("once more").starts_with("AAAAAA\nAAAA"));
    let refused = terminal.hear("/reasoning loud");
    assert!(
        refused.contains("must be one of full, folded, hidden"),
        "{refused}"
    );
    terminal.leave();
}

#[test]
fn output_that_goes_elsewhere_makes_no_conversation() {
    let cache = TempDir::new().unwrap();
    let run = letters(cache.path(), &golden("llama"), &["-n", "4"]);
    let mut piped = Command::new("sh");
    piped.args(["-c", "\"$0\" \"$@\" 2>/dev/null | cat"]);
    piped.arg(run.get_program()).args(run.get_args());
    for (name, value) in run.get_envs() {
        if let Some(value) = value {
            piped.env(name, value);
        }
    }
    let mut terminal = Terminal::start(&piped);
    terminal.press(&format!("a question{ENTER}{CTRL_D}"));
    terminal.expect("a question\nAAAA");
    assert!(!terminal.raw.contains(&0x1b), "{:?}", terminal.screen());
    let (code, screen) = terminal.ends();
    assert_eq!(code, 0);
    assert!(!screen.contains(PROMPT), "{screen}");
}

#[test]
fn lines_are_found_again_by_the_next_process() {
    let cache = TempDir::new().unwrap();
    // Not there yet, as for a first user with a model of their own.
    let new = cache.path().join("new");
    let command = letters(&new, &golden("llama"), &["-n", "4"]);
    let mut first = Terminal::start(&command);
    for line in ["one", "twö 👩‍👧", "one"] {
        first.hear(line);
    }
    // However it ends.
    drop(first);
    let mut second = Terminal::start(&command);
    second.ready();
    for (key, line) in [(UP, "one"), (UP, "twö"), ("\x1b[B", "one")] {
        second.press(key);
        let line = format!("{PROMPT}{line}");
        second.wait(&line, |terminal| terminal.line().starts_with(&line));
    }
    second.press(ENTER);
    second.expect("AAAA");
    second.leave();
    let history = fs::read_to_string(new.join("chat-history")).unwrap();
    assert_eq!(history, "#V2\ntwö 👩‍👧\none\n/exit\n");
    use std::os::unix::fs::PermissionsExt;
    let mode = fs::metadata(new.join("chat-history"))
        .unwrap()
        .permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
}

#[test]
fn tab_completes_and_hints_are_dimmed() {
    let (cache, files) = (TempDir::new().unwrap(), Files::new());
    let file = files.write("a talk.json", "[{\"role\": \"user\", \"content\": \"hi\"}]");
    let commit = "0123456789".repeat(4);
    let hub = cache.path().join("huggingface/hub/models--ours--Tiny_One");
    let (snapshot, refs) = (hub.join("snapshots").join(&commit), hub.join("refs"));
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir_all(&refs).unwrap();
    fs::write(refs.join("main"), &commit).unwrap();
    for file in ["config.json", "model.safetensors"] {
        let there = Path::new(&golden("llama")).join(file);
        fs::copy(there, snapshot.join(file)).unwrap();
    }
    let mut terminal = chat(&cache);
    terminal.type_in("/sta");
    terminal.expect("/stats");
    assert!(terminal.is_dim("ts"));
    terminal.press(TAB);
    terminal.wait("the name", |terminal| terminal.cursor().1 == 10);
    terminal.press(CTRL_C);
    terminal.type_in("/set tempe");
    terminal.press(&format!("{TAB}0.5{ENTER}"));
    terminal.ready();
    assert!(
        terminal.screen().contains("/set temperature 0.5\n"),
        "{}",
        terminal.screen()
    );
    assert!(
        terminal
            .hear("/set temperature")
            .starts_with("temperature: 0.5\n")
    );
    // Several are listed.
    terminal.type_in("/sa");
    terminal.press(TAB);
    terminal.expect("/save!");
    terminal.press(CTRL_C);
    let half = &file[..file.len() - "talk.json".len()];
    terminal.type_in(&format!("/load {half}"));
    terminal.press(&format!("{TAB}{ENTER}"));
    terminal.expect("1 message.");
    terminal.type_in("/model smollm2");
    terminal.press(TAB);
    terminal.expect("smollm2:135m");
    terminal.press(CTRL_C);
    terminal.type_in("/model ours/Tiny_");
    terminal.press(TAB);
    terminal.expect("/model ours/Tiny_One");
    terminal.press(CTRL_C);
    terminal.leave();
}

/// What a conversation holds, by its own account.
fn saved(terminal: &mut Terminal, files: &Files) -> Value {
    let file = files.write("saved.json", "");
    terminal.hear(&format!("/save! {file}"));
    serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap()
}

fn questions(said: &Value) -> Vec<&str> {
    let messages = said.as_array().unwrap().iter();
    let asked = messages.filter(|message| message["role"] == "user");
    asked
        .map(|message| message["content"].as_str().unwrap())
        .collect()
}

#[test]
fn several_lines_are_one_question() {
    let (cache, files) = (TempDir::new().unwrap(), Files::new());
    let mut terminal = chat(&cache);
    for keys in [
        "\"\"\"\r  one\r two\\\r\"\"\"\r",
        // Never a command, however it is brought back.
        "\"\"\"\r/clear\r\"\"\"\r",
        &format!("{UP}{ENTER}"),
        " /clear\r",
        "three\\\rfour\r",
        &format!("five{ALT_ENTER}six{ENTER}"),
        // As terminals hand over what is pasted.
        "\x1b[200~seven\\\reight\x1b[201~\r",
    ] {
        terminal.ready();
        terminal.press(keys);
        terminal.wait("answer", |terminal| terminal.screen().contains("AAAA"));
        terminal.ready();
        // A clean screen, so that the next answer is told from this one.
        terminal.press("\x0c");
        terminal.wait("clean screen", |terminal| terminal.cursor().0 == 0);
    }
    let said = saved(&mut terminal, &files);
    let asked = [
        "  one\n two\\",
        "/clear",
        "/clear",
        " /clear",
        "three\nfour",
        "five\nsix",
        "seven\\\neight",
    ];
    assert_eq!(questions(&said), asked);
    terminal.leave();
}

#[test]
fn graphemes_are_edited_whole() {
    let (cache, files) = (TempDir::new().unwrap(), Files::new());
    let mut terminal = chat(&cache);
    for typed in ["👩‍👧", "e\u{301}", "漢", "🇫🇷", "👍🏽"] {
        terminal.ready();
        terminal.press(&format!("a{typed}{BACKSPACE}b"));
        terminal.wait("what is left", |terminal| {
            terminal.line() == format!("{PROMPT}ab")
        });
        // Left over it, and back.
        terminal.press(&format!("{typed}\x1b[D{BACKSPACE}c\x05"));
        let line = format!("{PROMPT}ac{typed}");
        terminal.wait(&line, |terminal| terminal.line() == line);
        terminal.press(ENTER);
        terminal.expect("AAAA");
        terminal.ready();
        let said = saved(&mut terminal, &files);
        assert_eq!(questions(&said), [format!("ac{typed}")]);
        terminal.hear("/clear");
    }
    terminal.leave();
}

#[test]
fn a_resize_leaves_the_line_as_it_is() {
    let (cache, files) = (TempDir::new().unwrap(), Files::new());
    let mut terminal = chat(&cache);
    let line = "0123456789".repeat(12);
    let (first, second) = line.split_at(60);
    // As it stands on the screen, with the cursor behind it.
    let shown = |terminal: &Terminal, line: &str, cursor: (u16, u16)| {
        let screen = terminal.screen().replace('\n', "");
        screen == format!("Chatting. /help for help, Ctrl-D to leave.{PROMPT}{line}")
            && terminal.cursor() == cursor
    };
    terminal.type_in(first);
    terminal.resize(60, 50);
    terminal.wait("half a line in two", |it| shown(it, first, (2, 14)));
    terminal.press(second);
    terminal.wait("a line in three", |it| shown(it, &line, (3, 24)));
    terminal.resize(60, 100);
    terminal.wait("a line in two", |it| shown(it, &line, (2, 24)));
    terminal.press(&format!("!{ENTER}"));
    terminal.expect("AAAA");
    terminal.ready();
    let said = saved(&mut terminal, &files);
    assert_eq!(questions(&said), [format!("{line}!")]);
    terminal.leave();
}

#[test]
fn settings_are_changed_told_and_left_to_the_model() {
    let cache = TempDir::new().unwrap();
    let mut terminal = chat(&cache);
    assert_eq!(terminal.hear("/set max_tokens 2"), "");
    let heard = terminal.hear("hi");
    assert!(heard.starts_with("AA\n2 tokens"), "{heard}");
    let listed = terminal.hear("/set");
    for line in [
        "* max-tokens",
        "* logit-bias",
        "  top-p",
        "  show-reasoning",
    ] {
        let found = listed.lines().any(|found| found.starts_with(line));
        assert!(found, "no {line:?} in {listed}");
    }
    assert_eq!(terminal.hear("/unset max-tokens"), "");
    assert!(
        terminal
            .hear("/set max-tokens")
            .starts_with("max-tokens: not set\n")
    );
    for (line, words) in [
        ("/set temprature 1", "did you mean temperature?"),
        ("/set top_p 2", "top-p: must be a number from 0 to 1"),
        ("/unset", "it is /unset NAME"),
        // Its template has no switch.
        ("/set thinking off", "thinking"),
        ("/set samplers top_k", ""),
        ("/set top_p 0.5", "top_p"),
    ] {
        let heard = terminal.hear(line);
        assert!(heard.contains(words), "{line}: {heard}");
        assert_eq!(heard.starts_with("error: "), !words.is_empty(), "{heard}");
    }
    // What was refused is not in force.
    assert!(terminal.hear("hi").starts_with("AAAA"));
    terminal.leave();
}

#[test]
fn conversations_are_saved_loaded_and_taken_back() {
    let (cache, files) = (TempDir::new().unwrap(), Files::new());
    let mut terminal = chat(&cache);
    assert!(terminal.hear("/system").contains("/system TEXT says it"));
    assert_eq!(terminal.hear("/system Be kind."), "");
    assert_eq!(terminal.hear("/system"), "Be kind.");
    assert!(terminal.hear("/undo").contains("nothing to take back"));
    assert!(terminal.hear("/retry").contains("nothing to ask again"));
    terminal.hear("one");
    terminal.hear("two");
    assert!(terminal.hear("/retry").starts_with("AAAA"));
    let before = saved(&mut terminal, &files);
    assert_eq!(before[0]["content"], "Be kind.");
    assert_eq!(questions(&before), ["one", "two"]);
    assert_eq!(terminal.hear("/undo"), "Taken back: two");
    assert_eq!(questions(&saved(&mut terminal, &files)), ["one"]);

    let file = files.write("before.json", &before.to_string());
    let refused = terminal.hear(&format!("/save {file}"));
    assert!(refused.contains("is there already; /save!"), "{refused}");
    assert_eq!(terminal.hear(&format!("/load {file}")), "4 messages.");
    assert_eq!(saved(&mut terminal, &files), before);
    let refused = terminal.hear("/load /no/such/file");
    assert!(
        refused.starts_with("error: /load: cannot read"),
        "{refused}"
    );
    let broken = files.write("broken.json", "[{\"role\": \"bot\"}]");
    let refused = terminal.hear(&format!("/load {broken}"));
    assert!(refused.contains("messages[0].role"), "{refused}");
    assert_eq!(saved(&mut terminal, &files), before);
    terminal.leave();

    // The same file is what --messages reads.
    let mut run = letters(
        cache.path(),
        &golden("llama"),
        &["-n4", "--messages", &file],
    );
    let output = run.output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "AAAA\n");
}

#[test]
fn another_model_takes_the_conversation_over() {
    let (cache, files) = (TempDir::new().unwrap(), Files::new());
    let mut terminal = chat(&cache);
    assert!(terminal.hear("/model").starts_with("llama on cpu"));
    terminal.hear("one");
    let mute = Altered::mute();
    for (model, words) in [(mute.path(), "chat template"), ("smolm2", "smolm2")] {
        let refused = terminal.hear(&format!("/model {model}"));
        assert!(
            refused.starts_with("error: ") && refused.contains(words),
            "{refused}"
        );
        assert!(terminal.hear("/model").starts_with("llama on cpu"));
    }
    let refused = terminal.hear("/model smollm2:135m --mxl");
    assert!(
        refused.contains("/model: unexpected argument '--mxl'"),
        "{refused}"
    );
    let other = Altered::endless();
    let of_kind = terminal.hear(&format!("/model {} --gguf", other.path()));
    assert!(of_kind.starts_with("error: "), "{of_kind}");
    let switched = terminal.hear(&format!("/model {} --safetensors", other.path()));
    assert!(switched.contains("room for 200000 tokens"), "{switched}");
    assert!(terminal.hear("two").starts_with("AAAA"));
    assert_eq!(questions(&saved(&mut terminal, &files)), ["one", "two"]);
    terminal.leave();
}

#[test]
fn another_model_that_cannot_fit_is_refused_with_what_would() {
    let cache = TempDir::new().unwrap();
    let flags = ["-n4", "--memory=2300kB"];
    let mut terminal = Terminal::start(&letters(cache.path(), &golden("llama"), &flags));
    let endless = Altered::endless();
    for (model, words) in [
        ("smollm2:135m", ["98.4 MB", "so it is not downloaded"]),
        (endless.path(), ["`memory` allows 2300000", "--context "]),
    ] {
        let refused = terminal.hear(&format!("/model {model}"));
        // A long line is broken anywhere.
        let refused = refused.replace('\n', "");
        for words in words {
            assert!(refused.contains(words), "no {words:?} in {refused}");
        }
    }
    assert!(terminal.hear("hi").starts_with("AAAA"));
    terminal.leave();
}

#[test]
fn stats_tell_what_was_taken() {
    let cache = TempDir::new().unwrap();
    let mut terminal = chat(&cache);
    assert!(
        terminal
            .hear("/stats")
            .starts_with("context      room for 512 tokens")
    );
    terminal.hear("one");
    terminal.hear("two");
    let told = terminal.hear("/stats");
    for words in [
        "last answer  4 tokens at ",
        "of 512 tokens (",
        "all answers  8 tokens",
        "prefix cache ",
        "memory       weights ",
    ] {
        assert!(told.contains(words), "no {words:?} in {told}");
    }
    assert!(number_before(&told, " kept from before") > 0, "{told}");
    terminal.leave();
}

#[test]
fn colours_are_for_those_who_want_them() {
    let (cache, files) = (TempDir::new().unwrap(), Files::new());
    for (flag, variable, coloured) in [
        ("--color=auto", ("NO_COLOR", ""), true),
        ("--color=auto", ("NO_COLOR", "1"), false),
        ("--color=auto", ("TERM", "dumb"), false),
        ("--color=never", ("TERM", "xterm"), false),
        ("--color=always", ("NO_COLOR", "1"), true),
    ] {
        let mut command = thinker(&cache, &files, &[flag]);
        command.env(variable.0, variable.1);
        let mut terminal = Terminal::start(&command);
        terminal.say("/nope");
        terminal.say("/reasoning folded");
        terminal.say("hi");
        terminal.expect("thought for");
        terminal.ready();
        let found = has_colour(&terminal.raw);
        assert_eq!(found, coloured, "{flag} {variable:?}");
        terminal.leave();

        let mut doctor = self::command(cache.path());
        doctor.args(["doctor", flag]).env(variable.0, variable.1);
        let mut terminal = Terminal::start(&doctor);
        // All of it is written at once, and may come in pieces: this stands behind a colour.
        terminal.expect("loquat ");
        let found = has_colour(&terminal.raw);
        assert_eq!(found, coloured, "doctor {flag} {variable:?}");
    }
}

/// Sequences for colours and the like are those that end in an m.
fn has_colour(raw: &[u8]) -> bool {
    let text = String::from_utf8_lossy(raw);
    text.split("\x1b[").skip(1).any(|sequence| {
        let end = sequence.find(|letter: char| letter.is_ascii_alphabetic());
        end.is_some_and(|end| sequence[end..].starts_with('m'))
    })
}
