use std::sync::{Arc, Mutex};

use loquat_session::{
    AdapterLimits, AppliedAdapter, Emit, Precision, Session, SessionOptions, StepBatch, StepOutput,
};
use loquat_spec::LayerRole;
use loquat_testkit::{adapters, goldens};
use loquat_weights::{AdapterParts, Factor};

use super::*;
use crate::device::{DeviceError, RecordId, Ticket};
use crate::interpret::Interpreter;
use crate::open::{DeviceTraits, Draft};
use crate::ops::Step;
use crate::session::CudaSession;

fn change(rank: usize, scale: f32, magnitude: bool) -> LowRank {
    let factor = |rows: usize, cols: usize| {
        let values = (0..rows * cols).map(|value| value as f32).collect();
        Arc::new(Factor::new(rows, cols, values).unwrap())
    };
    LowRank {
        a: factor(rank, 3),
        b: factor(2, rank),
        scale,
        magnitude: magnitude.then(|| vec![1.0; 2].into()),
        lengths_of: LengthsOf::Rows,
    }
}

#[test]
fn stacks_of_different_changes_have_one_form() {
    let role = Role::Layer(0, LayerRole::ExpertUp);
    let members = [
        Some(change(1, 2.0, false)),
        None,
        Some(change(2, 0.5, true)),
    ];
    let shape = StackShape::new(role, &members);
    let sizes = (shape.matrices, shape.rank, shape.rows, shape.cols);
    assert_eq!(sizes, (3, 2, 2, 3));
    assert_eq!((shape.scale, shape.lengths), (None, 2));
    assert_eq!(shape.bytes(), [4 * 18 + 8, 4 * 12, 4 * 24]);
    let (a, b) = shape.factors(members[0].as_ref());
    assert_eq!(a, [0.0, 1.0, 2.0, 0.0, 0.0, 0.0]);
    assert_eq!(b, [0.0, 0.0, 2.0, 0.0]);
    assert_eq!(shape.factors(None), (vec![0.0; 6], vec![0.0; 4]));
    let (_, b) = shape.factors(members[2].as_ref());
    assert_eq!(b, [0.0, 0.5, 1.0, 1.5]);
    let equal = [Some(change(2, 2.0, false)), Some(change(2, 2.0, false))];
    let shape = StackShape::new(role, &equal);
    assert_eq!((shape.scale, shape.lengths), (Some(2.0), 0));
}

/// A launch's operation, its first token, and how many it covers.
type Launched = (&'static str, u32, u32);

/// An interpreter that lists its launches.
#[derive(Default)]
struct Recorder {
    inner: Interpreter,
    launches: Arc<Mutex<Vec<Launched>>>,
}

impl Device for Recorder {
    fn allocate(&mut self, bytes: usize) -> Result<Address, DeviceError> {
        self.inner.allocate(bytes)
    }

    fn free(&mut self, address: Address) {
        self.inner.free(address);
    }

    fn write(&mut self, to: Address, bytes: &[u8]) -> Result<(), DeviceError> {
        self.inner.write(to, bytes)
    }

    fn read(&mut self, from: Address, out: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read(from, out)
    }

    fn copy(&mut self, from: Address, to: Address, bytes: usize) -> Result<(), DeviceError> {
        self.inner.copy(from, to, bytes)
    }

    fn launch(&mut self, op: &Op, step: &Step) -> Result<(), DeviceError> {
        let mut launches = self.launches.lock().unwrap();
        launches.push((op.name(), step.first, step.count));
        self.inner.launch(op, step)
    }

    fn record(&mut self, launches: Vec<(Op, Step)>) -> Result<RecordId, DeviceError> {
        self.inner.record(launches)
    }

    fn replay(&mut self, record: RecordId) -> Result<(), DeviceError> {
        self.inner.replay(record)
    }

    fn forget(&mut self, record: RecordId) {
        self.inner.forget(record);
    }

    fn fetch(&mut self, from: Address, bytes: usize) -> Result<Ticket, DeviceError> {
        self.inner.fetch(from, bytes)
    }

    fn collect(&mut self, ticket: Ticket, out: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.collect(ticket, out)
    }

    fn memory(&self) -> (u64, u64) {
        self.inner.memory()
    }
}

struct Opened {
    session: CudaSession,
    spec: Arc<ModelSpec>,
    launches: Arc<Mutex<Vec<Launched>>>,
}

impl Opened {
    fn new(family: &str) -> Self {
        let source = goldens::source(&goldens::family(family)).unwrap();
        let options = SessionOptions {
            precision: Precision::Reference,
            adapters: AdapterLimits {
                count: 4,
                bytes: 1 << 30,
                rank: MAX_RANK,
            },
            ..SessionOptions::default()
        };
        let traits = DeviceTraits {
            label: "recorder".to_owned(),
            memory_bytes: None,
            has_fast_path: true,
        };
        let device = Recorder::default();
        let launches = Arc::clone(&device.launches);
        let draft = Draft::new(&source, &options, traits).unwrap();
        let opened = draft.open(Box::new(device), &source, &options, &mut |_| {});
        Self {
            session: opened.unwrap(),
            spec: source.spec,
            launches,
        }
    }

    fn free_bytes(&self) -> u64 {
        self.session.sequences.storage().device().memory().0
    }

    /// The launches of a step with a new sequence for each list of adapters.
    fn launches(&mut self, rows: &[(&[AppliedAdapter], usize)]) -> Vec<Launched> {
        self.launches.lock().unwrap().clear();
        let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
        for (adapters, tokens) in rows {
            let sequence = self.session.create_adapted(adapters).unwrap();
            batch.push(sequence, &vec![5; *tokens], Emit::Logits { positions: 1 });
        }
        self.session.step(&batch, &mut output).unwrap();
        std::mem::take(&mut self.launches.lock().unwrap())
    }
}

#[test]
fn allocated_bytes_are_as_predicted() {
    for family in ["llama", "mixtral", "deepseek_v2"] {
        let mut opened = Opened::new(family);
        let free = opened.free_bytes();
        for adapter in adapters::pair(&opened.spec) {
            let predicted = predict_bytes(&adapter, Format::F32);
            assert!(predicted <= adapter.bytes(), "{family}");
            let id = opened.session.load_adapter(&adapter).unwrap();
            assert_eq!(free - opened.free_bytes(), predicted, "{family}");
            assert_eq!(opened.session.memory().adapter_bytes, predicted);
            opened.session.unload_adapter(id).unwrap();
            assert_eq!(opened.free_bytes(), free, "{family}");
        }
    }
}

#[test]
fn refused_adapters_are_named_and_freed() {
    let mut opened = Opened::new("gpt2");
    let free = opened.free_bytes();
    let kinds: BTreeMap<Role, Kind> = opened.spec.roles().into_iter().collect();
    let mut refusal = |role: Role, value: f32| {
        let kind = kinds[&role];
        let factor = |rows: usize, cols: usize| {
            Arc::new(Factor::new(rows, cols, vec![value; rows * cols]).unwrap())
        };
        let change = LowRank {
            a: factor(1, kind.cols()),
            b: factor(kind.rows(), 1),
            scale: 1.0,
            magnitude: Some(vec![1.0; kind.rows()].into()),
            lengths_of: LengthsOf::Rows,
        };
        let parts = AdapterParts {
            low_rank: BTreeMap::from([(role, vec![Some(change)])]),
            ..AdapterParts::default()
        };
        let adapter = AdapterWeights::new(&opened.spec, parts).unwrap();
        let refused = opened.session.load_adapter(&adapter);
        assert_eq!(opened.free_bytes(), free);
        refused.unwrap_err().to_string()
    };
    let error = refusal(Role::Positions, 1.0);
    let expected = format!("the cuda backend does not adapt {}", Role::Positions);
    assert!(error.contains(&expected), "{error}");
    let query = Role::Layer(0, LayerRole::Query);
    let error = refusal(query, 1e30);
    let expected = format!("the lengths of {query} are not finite numbers");
    assert!(error.contains(&expected), "{error}");
}

#[test]
fn other_tokens_keep_their_launches() {
    let mut opened = Opened::new("llama");
    let (mut applied, whole) = (Vec::new(), |program: &Program, count| {
        let parts = [&program.forward, &program.readout, &program.head];
        let launched = parts.into_iter().enumerate().flat_map(move |(part, all)| {
            let count = if part == 0 { count } else { 1 };
            all.iter().map(move |own| (own.op.name(), 0, count))
        });
        launched.collect::<Vec<Launched>>()
    });
    let expected = whole(&opened.session.program, 7);
    for adapter in adapters::pair(&opened.spec) {
        let id = opened.session.load_adapter(&adapter).unwrap();
        applied.push(AppliedAdapter::whole(id));
        assert_eq!(opened.launches(&[(&[], 7)]), expected);
    }
    let [first, second] = [applied[0], applied[1]];
    let none = AppliedAdapter {
        scale: 0.0,
        ..first
    };
    assert_eq!(opened.launches(&[(&[none], 7)]), expected);
    // Rows with the same adapters become adjacent, after those without.
    let rows: [(&[AppliedAdapter], usize); 4] =
        [(&[second], 2), (&[], 3), (&[first], 5), (&[second], 4)];
    let launches = opened.launches(&rows);
    let of = |name: &str| {
        let mut found: Vec<Launched> = launches.clone();
        found.retain(|launch| launch.0 == name);
        found
    };
    assert!(of("LowRank").contains(&("LowRank", 8, 6)));
    assert_eq!(of("EmbedLowRank"), [("EmbedLowRank", 3, 5)]);
    assert_eq!(of("Embed"), [("Embed", 0, 14)]);
    // The first adapter replaces norms.
    let norms = of("Norm");
    let split = [("Norm", 0, 3), ("Norm", 3, 5), ("Norm", 8, 6)];
    assert_eq!(norms[..3], split);
    assert_eq!(of("Attend")[0], ("Attend", 0, 14));
}
