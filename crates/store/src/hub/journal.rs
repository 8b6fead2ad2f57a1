//! Records which bytes of an unfinished download are on disk.
//!
//! A line is added only after its bytes are durable, and an unterminated line is ignored. A process
//! killed at any moment therefore leaves a journal that claims too little, never too much. A
//! restart replaces the journal before it overwrites a byte.

use std::fs::{self, File};
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;

const TITLE: &str = "loquat-download-1";
/// Placeholder for an unknown identity.
const UNKNOWN: &str = "-";

/// The content of a journal.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// ETag of the content, if known.
    pub identity: Option<String>,
    pub done: Spans,
}

impl Record {
    /// A missing journal, or one for another size, records nothing.
    pub(crate) fn read(path: &Path, size: u64) -> Self {
        let text = fs::read_to_string(path).unwrap_or_default();
        parse(&text, size).unwrap_or_default()
    }
}

/// An open journal.
#[derive(Debug)]
pub(crate) struct Journal {
    file: File,
    record: Record,
}

impl Journal {
    /// Replaces the journal at `path` by one that holds `record`.
    pub(crate) fn begin(path: &Path, size: u64, record: Record) -> io::Result<Self> {
        let identity = record.identity.as_deref().unwrap_or(UNKNOWN);
        let mut text = format!("{TITLE} {size} {identity}\n");
        for span in &record.done.0 {
            text += &line(span);
        }
        let draft = path.with_extension("journal.new");
        let mut file = File::create(&draft)?;
        file.write_all(text.as_bytes())?;
        file.sync_data()?;
        fs::rename(&draft, path)?;
        Ok(Self { file, record })
    }

    pub(crate) fn identity(&self) -> Option<&str> {
        self.record.identity.as_deref()
    }

    pub(crate) fn done(&self) -> &Spans {
        &self.record.done
    }

    /// Records a span, which must be durable already.
    pub(crate) fn add(&mut self, span: Range<u64>) -> io::Result<()> {
        self.file.write_all(line(&span).as_bytes())?;
        self.record.done.insert(span);
        Ok(())
    }
}

fn line(span: &Range<u64>) -> String {
    format!("{} {}\n", span.start, span.end)
}

fn parse(text: &str, size: u64) -> Option<Record> {
    // Ignore an unterminated last line.
    let (complete, _) = text.rsplit_once('\n')?;
    let mut lines = complete.lines();
    let head = lines.next()?.strip_prefix(TITLE)?.trim_start();
    let (recorded, identity) = head.split_once(' ')?;
    if recorded.parse() != Ok(size) {
        return None;
    }
    let mut done = Spans::default();
    for line in lines {
        let (start, end) = line.split_once(' ')?;
        let span: Range<u64> = start.parse().ok()?..end.parse().ok()?;
        if span.start > span.end || span.end > size {
            return None;
        }
        done.insert(span);
    }
    let identity = (identity != UNKNOWN).then(|| identity.to_owned());
    Some(Record { identity, done })
}

/// Byte ranges, sorted, non-empty and disjoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Spans(Vec<Range<u64>>);

impl Spans {
    pub(crate) fn one(span: Range<u64>) -> Self {
        let mut spans = Self::default();
        spans.insert(span);
        spans
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.0.iter().map(|span| span.end - span.start).sum()
    }

    pub(crate) fn end(&self) -> u64 {
        self.0.last().map_or(0, |span| span.end)
    }

    fn insert(&mut self, mut span: Range<u64>) {
        if span.is_empty() {
            return;
        }
        self.0.retain(|other| {
            let touches = other.start <= span.end && span.start <= other.end;
            if touches {
                span = span.start.min(other.start)..span.end.max(other.end);
            }
            !touches
        });
        let at = self.0.partition_point(|other| other.start < span.start);
        self.0.insert(at, span);
    }

    pub(crate) fn missing(&self, size: u64) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut at = 0;
        for span in &self.0 {
            gaps.push(at..span.start);
            at = span.end;
        }
        gaps.push(at..size);
        gaps.retain(|gap| !gap.is_empty());
        gaps
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub type Pairs = &'static [(u64, u64)];

    pub fn ranges(pairs: Pairs) -> Vec<Range<u64>> {
        pairs.iter().map(|&(start, end)| start..end).collect()
    }

    #[test]
    fn spans_merge_and_gaps_are_missing() {
        let cases: &[(Pairs, Pairs)] = &[
            (&[], &[(0, 100)]),
            (&[(0, 100)], &[]),
            (&[(10, 20), (40, 60)], &[(0, 10), (20, 40), (60, 100)]),
            (&[(40, 60), (10, 20)], &[(0, 10), (20, 40), (60, 100)]),
            (&[(0, 50), (50, 100)], &[]),
            (&[(10, 20), (30, 40), (15, 35)], &[(0, 10), (40, 100)]),
            (&[(5, 5)], &[(0, 100)]),
        ];
        for (spans, expected) in cases {
            let mut done = Spans::default();
            ranges(spans).into_iter().for_each(|span| done.insert(span));
            assert_eq!(done.missing(100), ranges(expected), "{spans:?}");
            let missing: u64 = expected.iter().map(|(start, end)| end - start).sum();
            assert_eq!(done.bytes() + missing, 100, "{spans:?}");
        }
    }

    #[test]
    fn truncated_journal_never_claims_more() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("blob.journal");
        let record = Record {
            identity: Some("tag".to_owned()),
            done: Spans::default(),
        };
        let mut journal = Journal::begin(&path, 100, record).unwrap();
        for span in [0..10, 50..65, 10..20] {
            journal.add(span).unwrap();
        }
        let journal_text = fs::read_to_string(&path).unwrap();
        for length in 0..=journal_text.len() {
            fs::write(&path, &journal_text[..length]).unwrap();
            let cut = Record::read(&path, 100);
            for span in &cut.done.0 {
                let mut covered = journal.done().0.iter();
                let inside =
                    |known: &Range<u64>| known.start <= span.start && span.end <= known.end;
                assert!(covered.any(inside), "{length}: {span:?}");
            }
        }
        fs::write(&path, &journal_text).unwrap();
        let again = Record::read(&path, 100);
        assert_eq!(&again.done, journal.done());
        assert_eq!(again.identity.as_deref(), Some("tag"));
    }

    #[test]
    fn foreign_journal_records_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("blob.journal");
        for text in [
            "",
            "0 10\n",
            "loquat-download-1 99 tag\n0 10\n",
            "loquat-download-1 100 tag\n0 101\n",
            "loquat-download-1 100 tag\n20 10\n",
            "loquat-download-1 100 tag\nten\n",
            "loquat-download-2 100 tag\n0 10\n",
        ] {
            fs::write(&path, text).unwrap();
            assert_eq!(Record::read(&path, 100).done.bytes(), 0, "{text:?}");
        }
    }
}
