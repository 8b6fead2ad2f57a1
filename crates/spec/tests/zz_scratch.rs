mod common;
use common::{load, tiny, with};
use serde_json::json;
#[test]
fn scratch() {
    let c = with(tiny("qwen3_moe"), json!({"num_experts": 65536, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "num_hidden_layers": 64}));
    let t = std::time::Instant::now();
    let d = load(&c).unwrap();
    println!("{:?}", t.elapsed());
    let n: usize = d.namings[0].slots(&d.spec).iter().map(|s| s.names.len()).sum();
    println!("{n} names {:?}", t.elapsed());
    let list = vec![1.5f64; 400_000];
    let c = with(tiny("llama"), json!({"head_dim": 800_000, "num_hidden_layers": 1000, "rope_scaling": {"type": "longrope", "original_max_position_embeddings": 64, "short_factor": list, "long_factor": list}}));
    let r = load(&c);
    println!("{:?} {:?}", r.err(), t.elapsed());
    println!("{}", std::fs::read_to_string("/proc/self/status").unwrap().lines().find(|l| l.starts_with("VmHWM")).unwrap());
}
