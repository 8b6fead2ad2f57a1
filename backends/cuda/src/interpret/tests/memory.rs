use super::super::memory::{GRAIN, Memory};
use crate::device::AccessFault;
use crate::ops::Address;

fn write(memory: &mut Memory, at: Address, bytes: &[u8]) {
    let span = memory.span(at, bytes.len(), 1).unwrap();
    memory.bytes_mut(span).unwrap().copy_from_slice(bytes);
}

fn read(memory: &Memory, at: Address, len: usize) -> Result<Vec<u8>, AccessFault> {
    Ok(memory.bytes(memory.span(at, len, 1)?)?.to_vec())
}

#[test]
fn accesses_are_checked() {
    let mut memory = Memory::new(1000);
    let a = memory.allocate(300).unwrap();
    let b = memory.allocate(700).unwrap();
    assert_eq!(memory.free_bytes(), 0);
    assert_eq!(memory.allocate(1), None);
    for (start, len) in [(0, 1), (63, 2), (5, 200), (255, 45), (299, 1), (64, 64)] {
        let address = a.offset(start as u64);
        let bytes: Vec<u8> = (0..len).map(|i| i as u8 ^ 0x5a).collect();
        write(&mut memory, address, &bytes);
        assert_eq!(read(&memory, address, len), Ok(bytes));
    }
    let never = |offset| Err(AccessFault::NeverWritten { offset });
    assert_eq!(read(&memory, a, 6), never(1));
    assert_eq!(read(&memory, a.offset(200), 60), never(205));
    assert_eq!(
        read(&memory, a.offset(5), 200).map(|bytes| bytes.len()),
        Ok(200)
    );
    let beyond = AccessFault::OutOfBounds {
        offset: 299,
        end: 301,
        size: 300,
    };
    assert_eq!(read(&memory, a.offset(299), 2), Err(beyond));
    assert_eq!(
        read(&memory, Address(7), 1),
        Err(AccessFault::NotAllocated { address: 7 })
    );
    assert_eq!(read(&memory, Address::NONE, 1), Err(AccessFault::Missing));
    let misaligned = memory.span(a.offset(6), 4, 4).err();
    let expected = AccessFault::Misaligned {
        offset: 6,
        alignment: 4,
    };
    assert_eq!(misaligned, Some(expected));
    assert!(memory.free(a.offset(4)).is_err());
    assert_eq!(memory.free(a), Ok(()));
    assert_eq!(memory.free(a), Err(AccessFault::Freed));
    assert_eq!(read(&memory, a, 1), Err(AccessFault::Freed));
    assert_eq!(read(&memory, b, 1), never(0));
    assert_eq!(memory.free_bytes(), 300);
}

#[test]
fn reservations_are_committed_in_grains() {
    let mut memory = Memory::new(2 * GRAIN as u64);
    let at = memory.reserve(5 * GRAIN).unwrap();
    let grain = |index: usize| at.offset((index * GRAIN) as u64);
    assert_eq!(memory.free_bytes(), 2 * GRAIN as u64);
    let missing = |offset: usize| AccessFault::NotCommitted {
        offset: offset as u64,
    };
    assert_eq!(read(&memory, at, 1), Err(missing(0)));
    assert_eq!(memory.commit(grain(1), GRAIN), Ok(true));
    assert_eq!(memory.commit(grain(3), GRAIN), Ok(true));
    assert_eq!(memory.commit(grain(4), GRAIN), Ok(false));
    assert!(memory.commit(grain(3), GRAIN).is_err());
    assert!(memory.commit(grain(4), 2 * GRAIN).is_err());
    assert!(memory.commit(grain(4), 5).is_err());
    write(&mut memory, grain(1).offset(5), &[1, 2]);
    assert_eq!(read(&memory, grain(1).offset(5), 2), Ok(vec![1, 2]));
    let across = memory.span(Address(grain(2).0 - 8), 16, 1);
    assert_eq!(across.err(), Some(missing(2 * GRAIN)));
    assert_eq!(memory.decommit(grain(1), GRAIN), Ok(()));
    assert!(memory.decommit(grain(1), GRAIN).is_err());
    // What is committed again was never written.
    assert_eq!(memory.commit(grain(1), GRAIN), Ok(true));
    let never = AccessFault::NeverWritten {
        offset: GRAIN as u64 + 5,
    };
    assert_eq!(read(&memory, grain(1).offset(5), 2), Err(never));
    assert_eq!(memory.free(at), Ok(()));
    assert_eq!(memory.free_bytes(), 2 * GRAIN as u64);
}

#[test]
fn copies_keep_what_was_never_written() {
    let mut memory = Memory::new(1000);
    let a = memory.allocate(200).unwrap();
    let b = memory.allocate(200).unwrap();
    write(&mut memory, a.offset(70), &[1; 30]);
    write(&mut memory, b, &[2; 200]);
    let [from, to] = [a.offset(60), b.offset(3)];
    let [from, to] = [from, to].map(|at| memory.span(at, 100, 1).unwrap());
    memory.copy(from, to).unwrap();
    assert_eq!(read(&memory, b.offset(13), 30), Ok(vec![1; 30]));
    assert_eq!(read(&memory, b, 3), Ok(vec![2; 3]));
    assert_eq!(read(&memory, b.offset(103), 97), Ok(vec![2; 97]));
    for (at, len) in [(3, 10), (43, 60)] {
        let found = read(&memory, b.offset(at), len);
        assert_eq!(found, Err(AccessFault::NeverWritten { offset: at }));
    }
}
