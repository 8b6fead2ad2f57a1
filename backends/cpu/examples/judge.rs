// scratch
use loquat_cpu::CpuBackend;
use loquat_session::*;
use loquat_testkit::goldens::{self, Arrays};
use std::path::Path;
fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    for pair in &args {
        let (model, golden) = pair.split_once('=').unwrap_or((pair, pair));
        let name = Path::new(model)
            .file_name()
            .unwrap()
            .to_string_lossy()
            .to_string();
        let r = std::panic::catch_unwind(|| run(Path::new(model), Path::new(golden)));
        match r {
            Ok(Ok(s)) => println!("{name:28} {s}"),
            Ok(Err(e)) => println!("{name:28} ERR {e}"),
            Err(_) => println!("{name:28} PANIC"),
        }
    }
}
fn logits(source: &ModelSource, tokens: &[u32], chunk: usize) -> Result<Vec<f32>, String> {
    let options = SessionOptions {
        precision: Precision::Reference,
        context: Some(tokens.len()),
        max_sequences: 2,
        ..Default::default()
    };
    let mut s = CpuBackend::AUTO
        .open(source.clone(), &options, &mut |_| {})
        .map_err(|e| e.to_string())?;
    let id = s.create().map_err(|e| e.to_string())?;
    let mut out = StepOutput::default();
    let mut all = vec![];
    for c in tokens.chunks(chunk) {
        let mut b = StepBatch::default();
        b.push(id, c, Emit::Logits { positions: c.len() });
        s.step(&b, &mut out).map_err(|e| e.to_string())?;
        if let Some(e) = &out.rows()[0].error {
            return Err(e.to_string());
        }
        for p in 0..c.len() {
            all.extend_from_slice(out.logits(0, p));
        }
    }
    Ok(all)
}
fn run(model: &Path, golden: &Path) -> Result<String, String> {
    let source = goldens::source(model).map_err(|e| e.to_string())?;
    let arrays = Arrays::open(golden).map_err(|e| e.to_string())?;
    let mut res = String::new();
    let names = arrays.names();
    let (ka, kb) = if names.iter().any(|n| *n == "logits_a_hf") {
        ("logits_a_hf", "logits_b_hf")
    } else if names.iter().any(|n| *n == "logits_a") {
        ("logits_a", "logits_b")
    } else if names.iter().any(|n| *n == "logits_a_f32") {
        ("logits_a_f32", "logits_b_f32")
    } else {
        ("logits_a_hf", "logits_b_hf")
    };
    let a = arrays.tokens("prompt_a");
    let b = arrays.tokens("prompt_b");
    let la = arrays.floats(ka);
    let lb = arrays.floats(kb);
    let da = conformance::max_difference(&logits(&source, &a, 1000)?, &la);
    let whole = logits(&source, &b, 1000)?;
    let db = conformance::max_difference(&whole, &lb);
    res += &format!("a {da:9.2e} b {db:9.2e}");
    let mut worst = da.max(db);
    if names.iter().any(|n| *n == "greedy_ids") {
        let ids = arrays.tokens("greedy_ids");
        let lg = arrays.floats("greedy_logits");
        let mut t = a.clone();
        t.extend(&ids[..ids.len() - 1]);
        let all = logits(&source, &t, 1)?;
        let v = lg.len() / ids.len();
        let dg = conformance::max_difference(&all[(a.len() - 1) * v..], &lg);
        res += &format!(" g {dg:9.2e}");
        worst = worst.max(dg);
    }
    for c in [1, 7, 16] {
        if logits(&source, &b, c)?
            .iter()
            .map(|x| x.to_bits())
            .ne(whole.iter().map(|x| x.to_bits()))
        {
            res += &format!(" CHUNK{c}");
        }
    }
    res += if worst <= 1e-4 {
        " ok"
    } else if worst <= 1e-3 {
        " ~"
    } else {
        " BAD"
    };
    Ok(res)
}
