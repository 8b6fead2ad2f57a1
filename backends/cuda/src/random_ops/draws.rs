//! Drawn tokens.

use loquat_session::Draw;

use super::builder::Builder;
use super::case::Case;
use crate::draw::DrawTable;
use crate::ops::DrawTokens;

pub fn draw_tokens(mut b: Builder) -> Case {
    // As wide as a vocabulary, in some cases.
    let vocab = if b.below(4) == 0 {
        b.set_count(1 + b.count % 3);
        b.pick(&[32_000, 50_257, 151_936])
    } else {
        b.size(b.tokens)
    };
    let scale = b.pick(&[0.0, 1.0, 6.0, 200.0]);
    let mut values = b.random_values(b.tokens * vocab, scale);
    if b.flag() {
        // Many equal ones.
        values.iter_mut().for_each(|value| *value = value.round());
    }
    b.spoil(&mut values);
    let logits = b.input(&values);
    let out = b.output_words(b.tokens);
    let draws: Vec<u32> = (0..b.tokens).flat_map(|_| words(&table(&mut b))).collect();
    b.tables.draws = b.words(&draws);
    b.finish(move |placed| {
        let op = DrawTokens {
            logits: placed.at(logits),
            out: placed.at(out),
            vocab: vocab as u32,
            reserved: 0,
        };
        op.into()
    })
}

fn table(b: &mut Builder) -> DrawTable {
    if b.below(8) == 0 {
        return DrawTable::GREEDY;
    }
    let unit = b.between(0.0, 1.0);
    DrawTable::new(&Draw {
        temperature: b.pick(&[1e-30, 0.1, 0.7, 1.0, 2.5, 1e30]),
        top_k: b.pick(&[0, 0, 1, 2, 40, 1_000_000]),
        top_p: b.pick(&[1.0, 1.0, 0.95, 0.4, 1e-9]),
        min_p: b.pick(&[0.0, 0.0, 0.05, 1.0]),
        unit: b.pick(&[0.0, unit, unit, unit, 1.0 - f32::EPSILON]),
    })
}

fn words(table: &DrawTable) -> [u32; 6] {
    bytemuck::cast(*table)
}
