//! The step's tables.

use super::{Launch, Result, at, bytes_at};
use crate::draw::DrawTable;
use crate::ops::{Address, PageRun, RowTable, StateCopy};

impl Launch<'_> {
    /// `u32[token][width]`
    pub(super) fn token_u32s(
        &mut self,
        operand: &'static str,
        table: Address,
        token: usize,
        width: usize,
    ) -> Result<Vec<u32>> {
        let from = at(table, token * width);
        self.access.u32s(operand, from, width)
    }

    fn token_u32(&mut self, operand: &'static str, table: Address, token: usize) -> Result<usize> {
        Ok(self.token_u32s(operand, table, token, 1)?[0] as usize)
    }

    pub(super) fn id(&mut self, token: usize) -> Result<u32> {
        Ok(self.token_u32s("ids", self.tables.ids, token, 1)?[0])
    }

    pub(super) fn position(&mut self, token: usize) -> Result<usize> {
        self.token_u32("positions", self.tables.positions, token)
    }

    pub(super) fn seen_end(&mut self, token: usize) -> Result<usize> {
        self.token_u32("seen_end", self.tables.seen_end, token)
    }

    /// The features of a token; none for text.
    pub(super) fn features(&mut self, level: usize, token: usize) -> Result<Address> {
        let index = level as u64 * self.tables.feature_stride + token as u64;
        let table = self.tables.features;
        if table.is_none() {
            return Ok(table);
        }
        let found = self
            .access
            .u64s("features", bytes_at(table, 8 * index), 1)?;
        Ok(Address(found[0]))
    }

    /// A token's row.
    pub fn row_of_token(&mut self, token: usize) -> Result<usize> {
        let row = self.token_u32("token_row", self.tables.token_row, token)?;
        Ok(row)
    }

    /// The pages of a token's sequence in a group of layers.
    pub(super) fn page_run(&mut self, token: usize, group: u32) -> Result<PageRun> {
        let row = self.row_of_token(token)?;
        self.page_run_of_row("token_row", row, group)
    }

    /// The pages of a row, which an operand names.
    pub(super) fn page_run_of_row(
        &mut self,
        operand: &'static str,
        row: usize,
        group: u32,
    ) -> Result<PageRun> {
        let rows = self.step.rows as usize;
        if row >= rows {
            let why = format!("row {row} of a step of {rows}");
            return Err(self.access.invalid(operand, why));
        }
        let index = u64::from(group) * self.tables.run_stride + row as u64;
        let from = bytes_at(self.tables.page_runs, 8 * index);
        let run = self.access.u32s("page_runs", from, 2)?;
        Ok(PageRun {
            start: run[0],
            first: run[1],
        })
    }

    /// Pages of a run, by their index in it.
    pub(super) fn pages(
        &mut self,
        run: PageRun,
        pages: std::ops::Range<usize>,
    ) -> Result<Vec<u32>> {
        let from = at(self.tables.pages, run.start as usize + pages.start);
        self.access.u32s("pages", from, pages.len())
    }

    /// How a position's token is drawn.
    pub(super) fn draw_table(&mut self, position: usize) -> Result<DrawTable> {
        let size = size_of::<DrawTable>();
        let from = bytes_at(self.tables.draws, (position * size) as u64);
        let words = self.access.u64s("draws", from, size / 8)?;
        Ok(bytemuck::pod_read_unaligned(bytemuck::cast_slice(&words)))
    }

    /// A row that the launch covers.
    pub(super) fn row(&mut self, row: usize) -> Result<RowTable> {
        let rows = self.step.rows as usize;
        if row >= rows {
            let why = format!("row {row} of a step of {rows}");
            return Err(self.access.invalid("rows", why));
        }
        let from = bytes_at(self.tables.rows, (row * size_of::<RowTable>()) as u64);
        let words = self.access.u64s("rows", from, size_of::<RowTable>() / 8)?;
        let ([first, tokens], [first_snapshot, snapshots]) = (halves(words[0]), halves(words[1]));
        let is_range = first.checked_add(tokens).is_some();
        self.access
            .require(is_range, "rows", "more tokens than a step can have")?;
        Ok(RowTable {
            first,
            tokens,
            first_snapshot,
            snapshots,
            before: Address(words[2]),
            after: Address(words[3]),
        })
    }

    pub(super) fn snapshots(&mut self, row: &RowTable) -> Result<Vec<StateCopy>> {
        let size = size_of::<StateCopy>();
        let from = bytes_at(
            self.tables.snapshots,
            (row.first_snapshot as usize * size) as u64,
        );
        let words = self
            .access
            .u64s("snapshots", from, row.snapshots as usize * size / 8)?;
        let copies: Vec<_> = words
            .as_chunks::<2>()
            .0
            .iter()
            .map(|words| StateCopy {
                tokens: halves(words[0])[0],
                reserved: 0,
                to: Address(words[1]),
            })
            .collect();
        for copy in &copies {
            if copy.tokens == 0 || copy.tokens > row.tokens {
                let why = format!("after {} of {} tokens", copy.tokens, row.tokens);
                return Err(self.access.invalid("snapshots", why));
            }
        }
        Ok(copies)
    }
}

/// The first and second `u32` of a little-endian word.
fn halves(word: u64) -> [u32; 2] {
    [word as u32, (word >> 32) as u32]
}
