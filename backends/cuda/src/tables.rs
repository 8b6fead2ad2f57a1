//! The tables of a step: written on the host, copied to the device in one piece.

use loquat_session::sequences::TokenPlace;

use crate::device::{Device, DeviceError};
use crate::draw::DrawTable;
use bytemuck::bytes_of;

use crate::ops::{Address, MEDIA_ID, PageRun, RowTable, StateCopy, Step, Tables};

/// What a step's rows are, flattened over their tokens.
#[derive(Default)]
pub struct StepTables {
    pub ids: Vec<u32>,
    pub positions: Vec<u32>,
    pub rope: Vec<[u32; 3]>,
    pub seen_end: Vec<u32>,
    pub token_row: Vec<u32>,
    /// `[level][token]`; empty without media.
    features: Vec<Vec<u64>>,
    /// Levels that a step with media reads, whether its media have all of them or not.
    levels: usize,
    pub rows: Vec<RowTable>,
    pub snapshots: Vec<StateCopy>,
    /// `[group][row]`
    pub page_runs: Vec<Vec<PageRun>>,
    pub pages: Vec<u32>,
    /// The tokens after which something is emitted.
    pub emitted: Vec<u32>,
    /// How tokens are chosen, if any of them is drawn.
    pub draws: Vec<DrawTable>,
    staging: Vec<u8>,
    /// Memory for the tables, which grows with the steps.
    memory: (Address, usize),
}

impl StepTables {
    /// For a program that reads so many levels of features.
    pub fn new(levels: usize) -> Self {
        Self {
            levels,
            ..Self::default()
        }
    }

    /// Removes all rows and keeps the memory.
    pub fn clear(&mut self, groups: usize) {
        let Self {
            ids,
            positions,
            rope,
            seen_end,
            token_row,
            features,
            levels: _,
            rows,
            snapshots,
            page_runs,
            pages,
            emitted,
            draws,
            staging,
            memory: _,
        } = self;
        draws.clear();
        for words in [ids, positions, seen_end, token_row, pages, emitted] {
            words.clear();
        }
        rope.clear();
        features.clear();
        rows.clear();
        snapshots.clear();
        page_runs.resize_with(groups, Vec::new);
        page_runs.iter_mut().for_each(Vec::clear);
        staging.clear();
    }

    pub fn tokens(&self) -> usize {
        self.ids.len()
    }

    /// Adds a token of the row that comes next.
    pub fn push_token(&mut self, id: u32, position: usize, place: TokenPlace) {
        self.ids.push(id);
        self.positions.push(position as u32);
        self.rope.push(place.rope.map(|position| position as u32));
        self.seen_end.push(place.seen_end as u32);
        self.token_row.push(self.rows.len() as u32);
    }

    /// A token's features of one level take the place of its embedding, or are added later.
    pub fn set_features(&mut self, token: usize, level: usize, features: Address) {
        let levels = self.levels.max(level + 1).max(self.features.len());
        self.features.resize_with(levels, Vec::new);
        let of_level = &mut self.features[level];
        of_level.resize(of_level.len().max(token + 1), 0);
        of_level[token] = features.0;
        self.ids[token] = MEDIA_ID;
    }

    /// Bytes that steps of these sizes copy at most.
    pub fn max_bytes(sizes: &StepSizes) -> u64 {
        let [tokens, rows, groups, levels, pages] = [
            sizes.tokens,
            sizes.rows,
            sizes.groups,
            sizes.levels,
            sizes.row_pages,
        ]
        .map(|count| count as u64);
        // Ids, positions, rotary positions, ends, rows, emitted tokens and their draws.
        let of_token = 4 * (1 + 1 + 3 + 1 + 1 + 1) + 8 * levels + size_of::<DrawTable>() as u64;
        let of_row = (size_of::<RowTable>() + SNAPSHOTS_PER_ROW * size_of::<StateCopy>()) as u64
            + groups * size_of::<PageRun>() as u64
            + 4u64.saturating_mul(groups).saturating_mul(pages);
        let of_rows = rows.saturating_mul(of_row);
        let all = tokens.saturating_mul(of_token).saturating_add(of_rows);
        all.saturating_add(16 * ALIGNMENT as u64)
    }

    /// Copies the tables to the device, and returns where each is.
    pub fn upload(&mut self, device: &mut dyn Device) -> Result<Step, DeviceError> {
        let tokens = self.tokens();
        let levels = self.features.len();
        self.staging.clear();
        let mut staging = Staging {
            bytes: &mut self.staging,
        };
        // Pages are last: their number changes while the same rows decode, and recorded steps keep
        // the addresses.
        let mut tables = Tables {
            ids: staging.words(&self.ids),
            draws: staging.items(self.draws.iter().map(bytes_of)),
            positions: staging.words(&self.positions),
            rope: staging.items(self.rope.iter().map(bytes_of)),
            seen_end: staging.words(&self.seen_end),
            token_row: staging.words(&self.token_row),
            features: match levels {
                0 => Address::NONE,
                _ => {
                    let levels = self.features.iter_mut();
                    let all = levels.flat_map(|level| {
                        level.resize(tokens, 0);
                        level.iter()
                    });
                    let all: Vec<u64> = all.copied().collect();
                    staging.items(all.iter().map(bytes_of))
                }
            },
            feature_stride: tokens as u64,
            rows: staging.items(self.rows.iter().map(bytes_of)),
            snapshots: staging.items(self.snapshots.iter().map(bytes_of)),
            page_runs: staging.items(self.page_runs.iter().flatten().map(bytes_of)),
            run_stride: self.rows.len() as u64,
            emitted: staging.words(&self.emitted),
            pages: staging.words(&self.pages),
        };
        let to = self.fit(device)?;
        device.write(to, &self.staging)?;
        tables.move_to(to);
        Ok(Step {
            first: 0,
            count: tokens as u32,
            rows: self.rows.len() as u32,
            reserved: 0,
            tables,
        })
    }
}

impl StepTables {
    /// Memory for the staged bytes.
    fn fit(&mut self, device: &mut dyn Device) -> Result<Address, DeviceError> {
        let needed = self.staging.len();
        if needed > self.memory.1 {
            device.free(self.memory.0);
            self.memory = (Address::NONE, 0);
            let size = needed.next_power_of_two().max(4096);
            self.memory = (device.allocate(size)?, size);
        }
        Ok(self.memory.0)
    }
}

impl Tables {
    /// Turns offsets, which count from one, into addresses.
    fn move_to(&mut self, base: Address) {
        let Self {
            ids,
            positions,
            rope,
            seen_end,
            token_row,
            features,
            feature_stride: _,
            rows,
            snapshots,
            page_runs,
            run_stride: _,
            pages,
            emitted,
            draws,
        } = self;
        let all = [
            ids, positions, rope, seen_end, token_row, features, rows, snapshots, page_runs, pages,
            emitted, draws,
        ];
        for offset in all.into_iter().filter(|offset| !offset.is_none()) {
            *offset = base.offset(offset.0 - 1);
        }
    }
}

/// The largest step.
pub struct StepSizes {
    pub tokens: usize,
    pub rows: usize,
    /// Groups of layers.
    pub groups: usize,
    /// Levels of media features.
    pub levels: usize,
    /// Pages of a row in a group.
    pub row_pages: usize,
}

/// A step saves so many states of a row at most.
const SNAPSHOTS_PER_ROW: usize = 4;

/// Tables begin at multiples of this.
const ALIGNMENT: usize = 16;

struct Staging<'a> {
    bytes: &'a mut Vec<u8>,
}

impl Staging<'_> {
    fn words(&mut self, words: &[u32]) -> Address {
        self.items(words.iter().map(bytes_of))
    }

    /// None if there are no items.
    fn items<'b>(&mut self, items: impl Iterator<Item = &'b [u8]>) -> Address {
        let start = self.bytes.len().next_multiple_of(ALIGNMENT);
        self.bytes.resize(start, 0);
        items.for_each(|item| self.bytes.extend_from_slice(item));
        if self.bytes.len() == start {
            return Address::NONE;
        }
        // Offset 0 must not look like none.
        Address(1 + start as u64)
    }
}
