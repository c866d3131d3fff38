//! `cairn bench disk` as a process: what it prints, the space that it takes, what it leaves, and
//! places in which it cannot measure.
//!
//! The small filesystems are ext4 images that the test mounts in a mount namespace of its own, so
//! they vanish with the test. Only root can do that; without root these tests say so and end.

use crate::support::{Ran, command, finish_within, run};
use cairn_experiments::{FOLDER, Name, Outcome, Report};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The longest time that one of these runs may take on a busy machine.
const LONGEST: Duration = Duration::from_secs(300);

fn disk(folder: &Path, more: &[&str]) -> Child {
    let mut all = vec!["bench", "disk", ".", "--quick", "--size", "64MiB"];
    all.extend(more);
    let mut command = command(folder, &all);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("started")
}

/// Bytes that the run holds on the disk now, with all that is below its folder.
fn held(path: &Path) -> u64 {
    let own = fs::symlink_metadata(path).map_or(0, |metadata| metadata.blocks() * 512);
    let below = fs::read_dir(path).into_iter().flatten().flatten();
    below.map(|entry| held(&entry.path())).sum::<u64>() + own
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.cast_signed()).expect("a process");
    kill_process(pid, signal).expect("a running process");
}

fn finish(child: Child) -> Ran {
    finish_within(LONGEST, child)
}

fn watch(child: Child, each: impl FnMut(u32)) -> Ran {
    crate::support::watch(LONGEST, child, each)
}

/// Bytes that the announcement names.
fn announced(stderr: &str) -> u64 {
    let words: Vec<&str> = stderr.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "MiB").expect("an announcement");
    words[at - 1].parse::<u64>().expect("a number") << 20
}

#[test]
fn a_small_run_prints_every_experiment_within_its_bounds_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("mine"), "x").unwrap();
    let plots = folder.path().join("plots");
    let mut most = 0;
    let child = disk(folder.path(), &["-o", "json", "--plots", "plots"]);
    let ran = watch(child, |_| most = most.max(held(&folder.path().join(FOLDER))));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(most > 32 << 20, "{most} bytes were seen");
    assert!(most <= announced(&ran.stderr), "{most} bytes, and {}", ran.stderr);
    assert_eq!(names(folder.path()), ["mine", "plots"]);

    // The types refuse unknown fields and missing ones.
    let report: Report = serde_json::from_str(&ran.stdout).expect("the schema");
    let found: Vec<&str> = report.experiments.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(found, Name::all().map(Name::text).collect::<Vec<_>>());
    assert!(report.machine["findings"].as_array().is_some_and(|findings| findings.len() > 5));
    assert!(!report.conclusion.is_empty());
    for experiment in &report.experiments {
        assert!(!experiment.question.is_empty() && !experiment.source.is_empty());
        assert!(!experiment.sentences.is_empty(), "{}", experiment.name);
        for table in &experiment.tables {
            assert!(!table.rows.is_empty(), "{}", table.title);
            for row in &table.rows {
                match &row.outcome {
                    Outcome::Measured(figures) => {
                        assert_eq!(figures.len(), table.columns.len(), "{}", row.name);
                        assert!(figures.iter().any(Option::is_some), "{}", row.name);
                        assert!(!row.answered_by.is_empty(), "{}", row.name);
                    }
                    Outcome::NotMade(reason) => assert!(!reason.is_empty(), "{}", row.name),
                }
            }
        }
        for plot in &experiment.plots {
            let text = fs::read_to_string(plots.join(&plot.file)).expect("a plot");
            assert!(text.starts_with("<svg") && text.ends_with("</svg>\n"), "{}", plot.file);
            assert!(!plot.sentence.is_empty());
        }
    }
    let drawn = report.experiments.iter().map(|experiment| experiment.plots.len()).sum::<usize>();
    assert_eq!(names(&plots).len(), drawn, "no other file is in the folder of plots");
}

#[test]
fn one_experiment_is_printed_for_people() {
    let folder = tempfile::tempdir().unwrap();
    let ran = finish(disk(folder.path(), &["--only", "batches"]));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    for part in ["BATCHES", "ANSWERED BY", "page cache", "What it means for"] {
        assert!(ran.stdout.contains(part), "{part} in\n{}", ran.stdout);
    }
    assert!(!ran.stdout.contains("OBJECTS") && !ran.stdout.contains("NaN"), "{}", ran.stdout);
    assert!(names(folder.path()).is_empty());
}

#[test]
fn a_signal_ends_the_run_and_nothing_is_left() {
    for wanted in [Signal::INT, Signal::TERM, Signal::HUP] {
        let folder = tempfile::tempdir().unwrap();
        let mut sent = false;
        let ran = watch(disk(folder.path(), &["--only", "objects"]), |pid| {
            if !sent && held(&folder.path().join(FOLDER)) > 20 << 20 {
                // A terminal and a program in between may both send it.
                signal(pid, wanted);
                signal(pid, wanted);
                sent = true;
            }
        });
        assert!(sent, "{}", ran.stderr);
        assert_eq!(ran.code, 1, "{wanted:?}: {}", ran.stderr);
        assert!(ran.stderr.contains("stopped before the end"), "{}", ran.stderr);
        assert!(names(folder.path()).is_empty(), "{wanted:?}");
    }
}

#[test]
fn the_next_run_removes_what_a_killed_one_left() {
    let folder = tempfile::tempdir().unwrap();
    let left = folder.path().join(FOLDER);
    let mut killed = false;
    let ran = watch(disk(folder.path(), &["--only", "objects"]), |pid| {
        if !killed && held(&left) > 20 << 20 {
            signal(pid, Signal::KILL);
            killed = true;
        }
    });
    assert_eq!(ran.code, -9);
    assert!(killed && held(&left) > 20 << 20);
    let ran = finish(disk(folder.path(), &["--only", "batches"]));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(names(folder.path()).is_empty());
}

#[test]
fn a_folder_of_somebody_else_and_a_second_run_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let theirs = folder.path().join(FOLDER);
    fs::create_dir(&theirs).unwrap();
    fs::write(theirs.join("thesis"), "x").unwrap();
    let ran = finish(disk(folder.path(), &[]));
    assert_eq!(ran.code, 2, "{}", ran.stderr);
    assert!(ran.stderr.contains("not made by this command"), "{}", ran.stderr);
    assert_eq!(names(&theirs), ["thesis"]);
    fs::remove_dir_all(&theirs).unwrap();

    let mut second = None;
    let first = watch(disk(folder.path(), &["--only", "batches"]), |_| {
        if second.is_none() && theirs.exists() {
            second = Some(finish(disk(folder.path(), &["--only", "batches"])));
        }
    });
    let second = second.expect("the first one was seen");
    assert_eq!((first.code, second.code), (0, 2), "{}\n{}", first.stderr, second.stderr);
    assert!(second.stderr.contains("another run"), "{}", second.stderr);
}

#[test]
fn arguments_that_cannot_be_used_name_the_way_out() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "x").unwrap();
    symlink("nowhere", folder.path().join("link")).unwrap();
    for (arguments, words) in [
        (&["."][..], "not a terminal"),
        (&["none", "--quick"], "name a directory that exists"),
        (&["file", "--quick"], "not a directory"),
        (&["link", "--quick"], "link"),
        (&[".", "--quick", "--size", "1MiB"], "64MiB"),
        (&[".", "--quick", "--size", "x"], "--size"),
        (&[".", "--quick", "--only", "object"], "one of objects, intervals"),
        (&[".", "--quick", "--plots", "file"], "--plots"),
        (&[".", "--quick", "--plots", "/proc/none"], "--plots"),
        (&[".", "--quick", "--plots", "cairn-bench-disk/x"], "that the run removes"),
        (&["/dev/shm", "--quick"], "in memory"),
    ] {
        let all: Vec<&str> = ["bench", "disk"].iter().chain(arguments).copied().collect();
        let ran = run(folder.path(), &all);
        assert!(ran.code == 2 || ran.code == 1, "{arguments:?}: {} {}", ran.code, ran.stderr);
        assert!(ran.stderr.contains(words), "{arguments:?}: {}", ran.stderr);
        assert!(ran.stdout.is_empty(), "{arguments:?}");
    }
    assert_eq!(names(folder.path()), ["file", "link"]);
}

#[test]
fn a_limit_on_the_size_of_files_is_an_error_and_not_the_end_of_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let script = "ulimit -f 1000; exec \"$0\" bench disk . --quick --size 64MiB --only batches";
    let mut limited = Command::new("sh");
    limited.args(["-c", script, env!("CARGO_BIN_EXE_cairn")]).current_dir(folder.path());
    limited.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let ran = finish(limited.spawn().expect("a shell"));
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("File too large"), "{}", ran.stderr);
    assert!(names(folder.path()).is_empty());
}

/// Runs `test` in a new ext4 filesystem of `mib` MiB, mounted with `options` where only this thread
/// and its children see it. Without root, or without a tool, it is not run.
fn on_a_small_filesystem(mib: u64, options: &str, test: impl FnOnce(&Path) + Send) {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not tested: mounting needs root");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (image, mounted) = (folder.path().join("image"), folder.path().join("mounted"));
    fs::File::create(&image).unwrap().set_len(mib << 20).unwrap();
    fs::DirBuilder::new().mode(0o755).create(&mounted).unwrap();
    let tool = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output();
        match output {
            Ok(output) if output.status.success() => true,
            Ok(output) => {
                eprintln!("not tested: {program}: {}", String::from_utf8_lossy(&output.stderr));
                false
            }
            Err(error) => {
                eprintln!("not tested: {program}: {error}");
                false
            }
        }
    };
    let (image, at) = (image.to_str().unwrap(), mounted.to_str().unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            cairn_lossy::disk::isolate().expect("root");
            let made = tool("mkfs.ext4", &["-q", "-m", "0", image])
                && tool("mount", &["-o", &format!("loop,{options}"), image, at]);
            if made {
                test(&mounted);
                assert!(tool("umount", &[at]), "nothing holds the filesystem");
            }
        });
    });
}

#[test]
fn a_disk_that_is_too_small_or_read_only_is_refused_before_anything_is_made() {
    on_a_small_filesystem(48, "rw", |mounted| {
        let ran = finish(disk(mounted, &[]));
        assert_eq!(ran.code, 2, "{}", ran.stderr);
        assert!(ran.stderr.contains("are free; choose a smaller --size"), "{}", ran.stderr);
        assert_eq!(names(mounted), ["lost+found"]);
    });
    on_a_small_filesystem(600, "ro", |mounted| {
        let ran = run(mounted, &["bench", "disk", ".", "--quick"]);
        assert_eq!(ran.code, 2, "{}", ran.stderr);
        assert!(ran.stderr.contains("read-only"), "{}", ran.stderr);
    });
}

#[test]
fn a_disk_that_others_fill_in_the_middle_ends_the_run_with_a_clear_error() {
    on_a_small_filesystem(600, "rw", |mounted| {
        let theirs = mounted.join("theirs");
        let mut filled = false;
        let ran = watch(disk(mounted, &["--only", "objects"]), |_| {
            if !filled && held(&mounted.join(FOLDER)) > 8 << 20 {
                filled = true;
                let free = cairn_engine::io::free_space(mounted).unwrap().free_bytes;
                let file = fs::File::create(&theirs).unwrap();
                let _ = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, free);
                fs::write(mounted.join("more"), vec![1; 64 << 20]).unwrap_err();
            }
        });
        assert!(filled);
        assert_eq!(ran.code, 1, "{}", ran.stderr);
        assert!(ran.stderr.contains("objects"), "{}", ran.stderr);
        assert!(
            ran.stderr.contains("No space left") || ran.stderr.contains("free"),
            "{}",
            ran.stderr
        );
        assert_eq!(names(mounted), ["lost+found", "more", "theirs"]);
    });
}
