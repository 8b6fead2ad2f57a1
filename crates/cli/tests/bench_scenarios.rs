//! Every scenario of `loquat bench` on a tiny model: the reports' shapes, and what must hold in
//! them however fast the machine is.

use std::process::{Command, Output};

use loquat_testkit::goldens;
use serde_json::Value;

fn bench(flags: &[&str]) -> Output {
    let model = goldens::family("llama");
    bench_without_model(&[&[model.to_str().unwrap()], flags].concat())
}

fn bench_without_model(flags: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_loquat"));
    for variable in ["LOQUAT_BACKEND", "LOQUAT_LOG", "LOQUAT_MEMORY"] {
        command.env_remove(variable);
    }
    let cache = tempfile::tempdir().unwrap();
    command.env("LOQUAT_CACHE", cache.path());
    command.arg("bench").args(flags).output().unwrap()
}

#[track_caller]
fn text(flags: &[&str]) -> String {
    succeeded(bench(flags))
}

#[track_caller]
fn succeeded(output: Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.is_empty(), "{stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// The JSON report, and the figure beside it.
#[track_caller]
fn report(scenario: &str, flags: &[&str]) -> (Value, String) {
    let directory = tempfile::tempdir().unwrap();
    let figure = directory.path().join("figure.svg");
    let both = [flags, &["--json", "--svg", figure.to_str().unwrap()]].concat();
    let report: Value = serde_json::from_str(&text(&both)).unwrap();
    assert_eq!(report["scenario"], scenario);
    assert_eq!(report["model"], "llama");
    assert!(report["device"].as_str().unwrap().contains("cpu"));
    assert!(report["load_seconds"].as_f64().unwrap() > 0.0);
    let figure = std::fs::read_to_string(figure).unwrap();
    assert!(figure.starts_with("<svg"), "{figure}");
    assert!(figure.contains("llama on cpu"), "the caption");
    (report, figure)
}

#[track_caller]
fn number(value: &Value, field: &str) -> f64 {
    let number = value[field].as_f64();
    number.unwrap_or_else(|| panic!("no number {field} in {value}"))
}

#[track_caller]
fn is_a_spread(value: &Value) {
    let parts = ["p50", "p95", "p99", "max"].map(|part| number(value, part));
    assert!(parts[0] >= 0.0 && parts.is_sorted(), "{value}");
}

#[test]
fn the_engine_tells_its_own_part_of_a_step() {
    let flags = "--prompt-tokens 8 --decode-tokens 16 --batch 1,4 --rounds 1 --json";
    let report: Value = serde_json::from_str(&text(&flags.split(' ').collect::<Vec<_>>())).unwrap();
    assert_eq!(report["scenario"], "compare");
    for row in report["results"].as_array().unwrap() {
        match row["work"].as_str().unwrap() {
            // Between two steps; this prompt is one.
            "prompt" => assert_eq!(row["engine_overhead_us"], Value::Null, "{row}"),
            _ => assert!(number(row, "engine_overhead_us") > 0.0, "{row}"),
        }
    }
}

#[test]
fn chosen_works_are_measured_once_with_what_they_take() {
    // The longest is a prompt, before which a longer answer comes.
    let flags = "--work prompt:32,decode:4@1,decode:4@16x3 --json";
    let report: Value = serde_json::from_str(&text(&flags.split(' ').collect::<Vec<_>>())).unwrap();
    assert_eq!(report["scenario"], "works");
    assert!(number(&report, "ready_seconds") >= number(&report, "load_seconds"));
    if cfg!(target_os = "linux") {
        assert!(number(&report, "peak_bytes") > 1e6);
    }
    let results = report["results"].as_array().unwrap();
    let names: Vec<_> = results.iter().map(|result| &result["work"]).collect();
    assert_eq!(names, ["prompt:32", "decode:4@1", "decode:4@16x3"]);
    for result in results {
        assert!(number(result, "tokens_per_second") > 0.0, "{result}");
    }
    // Two layers of q, k, v, o, gate, up and down, and the head.
    let products = 2 * (64 * 64 + 2 * 32 * 64 + 64 * 64 + 3 * 64 * 128) + 288 * 64;
    assert_eq!(results[1]["multiply_adds_per_token"], f64::from(products));
    let read = |place: usize| number(&results[place], "read_bytes_per_token");
    assert!(read(2) < read(1), "three share the weights");
}

#[test]
fn the_machine_is_measured_without_a_model() {
    let flags = ["--machine", "--threads", "1", "--json"];
    let report: Value = serde_json::from_str(&succeeded(bench_without_model(&flags))).unwrap();
    assert_eq!(
        (&report["scenario"], &report["threads"]),
        (&"machine".into(), &1.into())
    );
    assert!(number(&report, "read_bytes_per_second") > 1e8);
    assert!(number(&report, "int8_multiply_adds_per_second") > 1e7);
}

#[test]
fn a_described_figure_is_drawn_and_what_does_not_belong_together_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (described, drawn) = (path("figure.json"), path("figure.svg"));
    let draw = ["--draw", &described, "--svg", &drawn];
    let refused = |flags: &[&str], words: &[&str]| {
        let output = bench_without_model(flags);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {stderr}");
        let named = words.iter().all(|word| stderr.contains(word));
        assert!(named, "{flags:?}: {stderr}");
    };
    refused(&draw, &["--draw", "figure.json"]);
    std::fs::write(&described, "{").unwrap();
    refused(&draw, &["--draw", "JSON"]);
    std::fs::write(&described, r#"{"title": "t"}"#).unwrap();
    refused(&draw, &["--draw", "`panels`"]);
    let panel =
        r#"{"title": "p", "x": "a", "y": "b", "lines": [{"name": "l", "points": [[1, 2]]}]}"#;
    let figure = format!(r#"{{"title": "t", "caption": "said below", "panels": [{panel}]}}"#);
    std::fs::write(&described, figure).unwrap();
    assert_eq!(succeeded(bench_without_model(&draw)), "");
    let svg = std::fs::read_to_string(&drawn).unwrap();
    assert!(
        svg.starts_with("<svg") && svg.contains("said below"),
        "{svg}"
    );

    refused(&["--draw", &described], &["--svg"]);
    refused(&["model", "--work", "prompt"], &["--work", "prompt:512"]);
    refused(&["model", "--machine"], &["--machine"]);
    refused(
        &["model", "--work", "prompt:8", "--rounds", "2"],
        &["--work", "--rounds"],
    );
    refused(&["--machine", "--svg", &drawn], &["--machine", "--svg"]);
    refused(
        &["--machine", "--requests", "5"],
        &["--machine", "--requests"],
    );
    refused(
        &["model", "--kv-format", "f1"],
        &["--kv-format", "f32, f16, bf16, q8"],
    );
}

#[test]
fn http_is_measured_beside_the_bare_session() {
    let flags = "--http --json --batch 3 --decode-tokens 8 --rounds 2";
    let report: Value = serde_json::from_str(&text(&flags.split(' ').collect::<Vec<_>>())).unwrap();
    assert_eq!(report["scenario"], "http");
    let one = &report["one_client"];
    assert!(number(one, "ratio") > 0.0);
    for rounds in ["http_rounds", "session_rounds"] {
        assert_eq!(one[rounds].as_array().unwrap().len(), 2, "{rounds}");
    }
    let many = &report["many_clients"];
    assert_eq!(many["clients"], 3);
    for spread in ["token_to_socket_us", "first_token_ms", "inter_token_ms"] {
        is_a_spread(&many[spread]);
    }
    let start = &report["start"];
    assert!(number(start, "ready_seconds") > 0.0);
    if cfg!(target_os = "linux") {
        assert!(number(start, "resident_bytes") > number(start, "resident_bytes_above_session"));
    }
}

#[test]
fn a_start_is_measured_beside_its_prompt() {
    let flags = "--start --json --rounds 2 --context 128 --memory 1GiB";
    let report: Value = serde_json::from_str(&text(&flags.split(' ').collect::<Vec<_>>())).unwrap();
    assert_eq!(report["scenario"], "start");
    for rounds in ["first_token_ms_rounds", "prompt_ms_rounds"] {
        assert_eq!(report[rounds].as_array().unwrap().len(), 2, "{rounds}");
    }
    let parts = ["prompt_ms", "start_ms"].map(|part| number(&report, part));
    assert!(parts.iter().all(|part| *part > 0.0), "{report}");
    let whole = number(&report, "first_token_ms");
    assert!((parts.iter().sum::<f64>() - whole).abs() < 1e-6, "{report}");

    let without_room = bench(&["--start", "--context", "2"]);
    let stderr = String::from_utf8_lossy(&without_room.stderr);
    assert_eq!(without_room.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("the startup"), "{stderr}");
}

#[test]
fn a_synthetic_model_is_measured_and_saved_like_a_real_one() {
    let small = "--prompt-tokens 8 --decode-tokens 4 --batch 1,2 --rounds 1 --json";
    let small: Vec<&str> = small.split(' ').collect();
    for format in ["bf16", "q4_k_m", "mlx4"] {
        let recipe = format!("llama-tiny:{format}");
        let flags = [&["--synthetic", &recipe], &small[..]].concat();
        let report = succeeded(bench_without_model(&flags));
        let report: Value = serde_json::from_str(&report).unwrap();
        assert_eq!(report["model"], recipe);
        let rows = report["results"].as_array().unwrap();
        assert_eq!(rows.len(), 3);
        for row in rows {
            assert!(number(row, "engine_tokens_per_second") > 0.0, "{row}");
        }
    }
    let folder = tempfile::tempdir().unwrap();
    for (recipe, name) in [
        ("llama-tiny:q4_0", "saved.gguf"),
        ("llama-tiny:mlx8", "saved"),
    ] {
        let path = folder.path().join(name);
        let path = path.to_str().unwrap();
        let flags = ["--synthetic", recipe, "--save", path];
        let said = succeeded(bench_without_model(&flags));
        assert!(said.contains(recipe) && said.contains(path), "{said}");
        let report = succeeded(bench_without_model(&[&[path], &small[..]].concat()));
        let report: Value = serde_json::from_str(&report).unwrap();
        assert_eq!(report["model"], name);
    }
}

#[test]
fn synthetic_models_have_no_text_and_names_are_refused_with_those_there_are() {
    let folder = tempfile::tempdir().unwrap();
    let gguf = folder.path().join("saved.gguf");
    let gguf = gguf.to_str().unwrap();
    for (flags, words) in [
        (&["--synthetic", "llama-2b"][..], ["llama-2b", "qwen3-0.6b"]),
        (&["--synthetic", "llama-1b:q3"], ["q3", "q4_k_m"]),
        (
            &["llama", "--synthetic", "llama-1b"],
            ["MODEL", "--synthetic"],
        ),
        (
            &["--synthetic", "llama-1b", "--constrained"],
            ["--synthetic", "--constrained"],
        ),
        (
            &["--synthetic", "llama-1b", "--http"],
            ["--synthetic", "--http"],
        ),
        (&["--save", gguf], ["--synthetic", "required"]),
        (
            &["--synthetic", "llama-tiny:mlx4", "--save", gguf],
            ["cannot hold `mlx4`", "q4_k_m"],
        ),
        (
            &["--synthetic", "llama-tiny", "--save", gguf, "--json"],
            ["--save", "--json"],
        ),
    ] {
        let output = bench_without_model(flags);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        let said = words.iter().all(|word| stderr.contains(word));
        assert!(said, "no {words:?} in: {stderr}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

const CLIENTS: [&str; 8] = [
    "--clients",
    "1,3",
    "--requests",
    "9",
    "--prompt-range",
    "4-24",
    "--output-range",
    "6-12",
];

#[test]
fn clients_are_measured_at_every_count() {
    let (report, figure) = report("clients", &CLIENTS);
    let rows = report["results"].as_array().unwrap();
    let counts: Vec<_> = rows.iter().map(|row| number(row, "clients")).collect();
    assert_eq!(counts, [1.0, 3.0]);
    for row in rows {
        assert_eq!(row["requests"], 9);
        for field in [
            "seconds",
            "generated_tokens_per_second",
            "prompt_tokens_per_second",
            "step_ms",
            "engine_overhead_us",
            "steps",
        ] {
            assert!(number(row, field) > 0.0, "{field}: {row}");
        }
        is_a_spread(&row["first_token_ms"]);
        is_a_spread(&row["inter_token_ms"]);
        let cache = &row["cache"];
        assert_eq!(number(cache, "hits") + number(cache, "misses"), 9.0);
    }
    for word in ["Time to first token", "p99", "tokens per second"] {
        assert!(figure.contains(word), "no {word}");
    }

    let table = text(&CLIENTS);
    for word in ["9 requests", "prompts of 4-24", "clients", "p99"] {
        assert!(table.contains(word), "no {word:?} in:\n{table}");
    }
}

#[test]
fn clients_may_be_measured_by_the_clock() {
    let flags = [&CLIENTS[..2], &["--seconds", "1"], &CLIENTS[4..]].concat();
    let (report, _) = report("clients", &flags);
    for row in report["results"].as_array().unwrap() {
        assert!(number(row, "seconds") >= 1.0, "{row}");
        assert!(number(row, "requests") >= number(row, "clients"), "{row}");
    }
}

#[test]
fn an_intruder_is_measured_beside_running_streams_and_alone() {
    let flags = "--prefill-interference 200 --batch 1,2 --decode-tokens 12 --rounds 2";
    let flags: Vec<_> = flags.split(' ').collect();
    let (report, figure) = report("prefill-interference", &flags);
    assert_eq!(report["prefill_tokens"], 200);
    let rows = report["results"].as_array().unwrap();
    let batches: Vec<_> = rows.iter().map(|row| number(row, "batch")).collect();
    assert_eq!(batches, [1.0, 2.0]);
    for row in rows {
        let rounds = row["rounds"].as_array().unwrap();
        assert_eq!(rounds.len(), 2);
        for round in rounds {
            for field in [
                "before_tokens_per_second",
                "prefill_first_token_ms",
                "prefill_alone_first_token_ms",
            ] {
                assert!(number(round, field) > 0.0, "{field}: {round}");
            }
            is_a_spread(&round["before_inter_token_ms"]);
            is_a_spread(&round["during_inter_token_ms"]);
        }
        let worst = rounds
            .iter()
            .map(|round| number(&round["during_inter_token_ms"], "max"));
        let worst = worst.fold(0.0, f64::max);
        assert_eq!(number(row, "during_inter_token_worst_ms"), worst);
    }
    assert!(figure.contains("prefill"), "the shaded part");
    assert!(text(&flags).contains("slowdown"));
}

#[test]
fn a_conversation_is_measured_with_the_cache_and_without() {
    let flags = "--turns 4 --user-tokens 20 --decode-tokens 12 --rounds 1";
    let flags: Vec<_> = flags.split(' ').collect();
    let (report, figure) = report("turns", &flags);
    for (side, keeps) in [("cache", true), ("no_cache", false)] {
        let turns = report[side]["turns"].as_array().unwrap();
        assert_eq!(turns.len(), 4);
        for (place, turn) in turns.iter().enumerate() {
            assert_eq!(turn["turn"], place + 1);
            assert_eq!(turn["prompt_tokens"], 20 + place * 32, "{turn}");
            // All that was said before, but for the last token, which nobody computed.
            let said = if keeps {
                (place * 32).saturating_sub(1)
            } else {
                0
            };
            assert_eq!(turn["cached_tokens"], said, "{turn}");
            assert!(number(turn, "first_token_ms") > 0.0);
        }
        let (first, last) = (&turns[0], &turns[3]);
        let growth = number(last, "first_token_ms") / number(first, "first_token_ms");
        // JSON's numbers are read to all but their last bit.
        let told = number(&report[side], "last_to_first");
        assert!((told / growth - 1.0).abs() < 1e-12, "{told} {growth}");
    }
    assert!(figure.contains("without the prefix cache"));
    assert!(text(&flags).contains("without the cache"));
}

#[test]
fn decoding_beside_busy_neighbours_is_measured() {
    let flags = ["--contended=1", "--decode-tokens=8", "--rounds=2"];
    let report: Value = serde_json::from_str(&text(&[&flags[..], &["--json"]].concat())).unwrap();
    assert_eq!(report["scenario"], "contended");
    assert_eq!(report["busy_threads"], 1);
    for side in ["alone", "contended"] {
        assert!(number(&report, &format!("{side}_tokens_per_second")) > 0.0);
        assert_eq!(
            report[format!("{side}_rounds")].as_array().unwrap().len(),
            2
        );
    }
    assert!(number(&report, "ratio") > 0.0);
    assert!(text(&flags).contains("busy threads: 1"));
}

#[test]
fn constrained_decoding_is_measured_beside_free() {
    let flags = [
        "--constrained",
        "--batch=1,3",
        "--decode-tokens=24",
        "--rounds=2",
    ];
    let report: Value = serde_json::from_str(&text(&[&flags[..], &["--json"]].concat())).unwrap();
    assert_eq!(report["scenario"], "constrained");
    assert_eq!(report["tokens"], 24);
    let results = report["results"].as_array().unwrap();
    for (row, batch) in results.iter().zip([1, 3]) {
        assert_eq!(row["batch"], batch);
        for speed in ["free", "constrained"] {
            assert!(
                number(row, &format!("{speed}_tokens_per_second")) > 0.0,
                "{row}"
            );
            assert_eq!(row[format!("{speed}_rounds")].as_array().unwrap().len(), 2);
        }
        assert!(
            number(row, "ratio") > 0.0 && number(row, "mask_us") > 0.0,
            "{row}"
        );
        let forced = number(row, "forced_share");
        assert!((0.0..0.5).contains(&forced), "{row}");
        assert!(number(row, "choices_ratio") > 0.0, "{row}");
    }
    assert_eq!(results.len(), 2);
    let table = text(&flags);
    for word in ["free", "forced %", "mask µs", "decode 24 × 3"] {
        assert!(table.contains(word), "no {word:?} in:\n{table}");
    }
}

#[test]
fn a_short_soak_checks_the_accounts() {
    let (report, figure) = report("soak", &["--soak", "2", "--seed", "3"]);
    let checks = report["checks"].as_array().unwrap();
    assert_eq!(checks.len(), 7);
    for check in checks {
        assert_ne!(check["outcome"], "failed", "{check}");
    }
    let totals = &report["totals"];
    assert_eq!(report["seen_by_clients"]["accepted"], totals["submitted"]);
    let ends = ["finished", "failed", "cancelled", "timed_out"].map(|end| number(totals, end));
    assert_eq!(ends.iter().sum::<f64>(), number(totals, "submitted"));
    assert!(report["samples"].as_array().unwrap().len() >= 16);
    assert!(figure.contains("resident"));
}

#[test]
fn a_soak_reads_well() {
    let table = text(&["--soak", "1"]);
    for word in [
        "24 clients for 1 s",
        "submitted",
        "passed",
        "the session holds no memory",
    ] {
        assert!(table.contains(word), "no {word:?} in:\n{table}");
    }
}

#[test]
fn flags_that_do_not_belong_together_are_refused() {
    for (flags, words) in [
        ("--clients 2 --turns 3", ["--clients", "--turns"]),
        (
            "--soak 2 --prefill-interference 9",
            ["--soak", "--prefill-interference"],
        ),
        ("--constrained --turns 3", ["--constrained", "--turns"]),
        ("--constrained --depth 2", ["--constrained", "--depth"]),
        ("--constrained --svg a.svg", ["--constrained", "--svg"]),
        ("--contended 1 --svg a.svg", ["--contended", "--svg"]),
        ("--contended 1 --depth 2", ["--contended", "--depth"]),
        ("--contended 1 --batch 8", ["--contended", "--batch"]),
        ("--contended 1 --seed 4", ["--contended", "--seed"]),
        (
            "--work prompt:8 --user-tokens 9",
            ["--work", "--user-tokens"],
        ),
        ("--http --kv-format q8", ["--http", "--kv-format"]),
        (
            "--constrained --max-slowdown 2",
            ["--constrained", "--max-slowdown"],
        ),
        (
            "--clients 2 --prompt-tokens 9",
            ["--clients", "--prompt-tokens"],
        ),
        (
            "--prefill-interference 9 --depth 2",
            ["--prefill-interference", "--depth"],
        ),
        ("--clients 2 --batch 2", ["--clients", "--batch"]),
        ("--soak 2 --rounds 2", ["--soak", "--rounds"]),
        ("--soak 2 --decode-tokens 2", ["--soak", "--decode-tokens"]),
        (
            "--clients 2 --requests 9 --seconds 2",
            ["--requests", "--seconds"],
        ),
        ("--requests 9", ["--clients", "not provided"]),
        (
            "--prefill-interference 9 --prompt-range 1-2",
            ["--prefill-interference", "--prompt-range"],
        ),
        (
            "--turns 9 --output-range 1-2",
            ["--turns", "--output-range"],
        ),
        (
            "--clients 2 --user-tokens 2",
            ["--clients", "--user-tokens"],
        ),
        ("--user-tokens 2", ["--turns", "not provided"]),
        ("--svg figure.svg", ["--clients", "not provided"]),
        ("--seed 4", ["--clients", "not provided"]),
        ("--clients 0", ["--clients", "at least 1"]),
        (
            "--clients 2 --prompt-range 9-2",
            ["--prompt-range", "such as 16-512"],
        ),
    ] {
        is_refused(flags, &words);
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    for (flags, words) in [
        ("--clients 5000", &["`--clients 5000`", "at most 1024"][..]),
        (
            "--clients 2,8 --requests 7",
            &["`--requests 7`", "at least 8"],
        ),
        ("--clients 2", &["16-512", "32-128", "context of 512"]),
        (
            "--prefill-interference 512",
            &["`--prefill-interference 512`", "context of 512"],
        ),
        (
            "--prefill-interference 18446744073709551615",
            &["context of 512"],
        ),
        (
            "--prefill-interference 100 --decode-tokens 500",
            &["context of 512"],
        ),
        (
            "--prefill-interference 100 --batch 600",
            &["`--batch 600`", "below 512"],
        ),
        (
            "--constrained --decode-tokens 496",
            &["`--decode-tokens`", "context of 512"],
        ),
        (
            "--constrained --decode-tokens 18446744073709551615",
            &["context of 512"],
        ),
        ("--turns 5", &["`--turns 5`", "64 + 64", "context of 512"]),
        ("--turns 18446744073709551615", &["context of 512"]),
        ("--soak 2 --context 32", &["context (32)", "at least 64"]),
        (
            "--turns 2 --svg missing/figure.svg",
            &["missing/figure.svg"],
        ),
    ] {
        is_refused(flags, words);
    }
}

#[track_caller]
fn is_refused(flags: &str, words: &[&str]) {
    let output = bench(&flags.split(' ').collect::<Vec<_>>());
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.stdout, b"", "{flags}");
    assert!(
        matches!(output.status.code(), Some(1 | 2)),
        "{flags}: {stderr}"
    );
    for word in words {
        assert!(stderr.contains(word), "{flags}: no {word:?} in: {stderr}");
    }
}
