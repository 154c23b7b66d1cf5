// Threads, channels, a map, timeouts: every number sent is received once and in order.
use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

fn main() {
    let pid = std::process::id();
    let stop = Arc::new(AtomicBool::new(false));
    let pair = Arc::new((Mutex::new(0u64), Condvar::new()));
    let (tx, rx) = channel::<(usize, u64, Vec<u64>)>();
    let mut workers = Vec::new();
    for id in 0..8usize {
        let (tx, stop, pair) = (tx.clone(), stop.clone(), pair.clone());
        workers.push(thread::spawn(move || {
            let mut n = 0u64;
            while !stop.load(Ordering::SeqCst) {
                let body: Vec<u64> = (0..50).map(|i| n * 31 + i).collect();
                tx.send((id, n, body)).unwrap();
                n += 1;
                let guard = pair.0.lock().unwrap();
                let _unused = pair.1.wait_timeout(guard, Duration::from_millis(2)).unwrap();
            }
            n
        }));
    }
    drop(tx);
    let collector = thread::spawn(move || {
        let mut got: HashMap<usize, u64> = HashMap::new();
        let mut total = 0u64;
        let mut wrong = 0;
        for (id, n, body) in rx {
            let expected = got.entry(id).or_insert(0);
            if *expected != n || body.iter().enumerate().any(|(i, v)| *v != n * 31 + i as u64) {
                wrong += 1;
            }
            *expected += 1;
            total += 1;
            if total % 500 == 0 {
                println!("tick {}", total);
            }
        }
        (got, wrong)
    });
    while !Path::new("go").exists() {
        thread::sleep(Duration::from_millis(20));
    }
    stop.store(true, Ordering::SeqCst);
    pair.1.notify_all();
    let sent: Vec<u64> = workers.into_iter().map(|w| w.join().unwrap()).collect();
    let (got, wrong) = collector.join().unwrap();
    if wrong != 0 || sent.iter().enumerate().any(|(id, n)| got.get(&id).copied().unwrap_or(0) != *n) || std::process::id() != pid {
        println!("result wrong: {}", wrong);
        std::process::exit(1);
    }
    println!("result ok");
}
