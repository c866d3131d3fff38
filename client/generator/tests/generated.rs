//! The code of the protocols is checked in, so that no build needs a generator. This test generates it
//! anew in pure Rust (no `protoc`) and compares. With `CAIRN_GENERATE` set, it writes the files first:
//! after a change of a `.proto` file, or of a generator's version. What the simulation's substitute
//! for tonic needs is in `sim`.
#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use prost::Message as _;
use prost_build::{Config, Module, ServiceGenerator};
use std::path::Path;

/// Checks the code of one protocol of a package. Returns the encoded descriptors.
fn check(
    package: &str,
    kind: &str,
    proto: &str,
    stubs: Option<Box<dyn ServiceGenerator>>,
) -> Vec<u8> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(package);
    let descriptors = protox::compile([proto], [package.join("proto")]).expect("a protocol");
    let encoded = descriptors.encode_to_vec();
    let module = |name: &str| Module::from_protobuf_package_name(name);
    let files = descriptors.file.into_iter().map(|file| (module(file.package()), file));
    let mut config = Config::new();
    config.bytes(["."]);
    if let Some(stubs) = stubs {
        config.service_generator(stubs);
    }
    let generated = config.generate(files.collect());
    for (module, code) in generated.expect("a protocol") {
        let name = module.to_file_name_or("");
        compare(&package.join("generated").join(kind).join(name), code.as_bytes());
    }
    encoded
}

/// Compares a file with what was generated, after writing it if asked to.
fn compare(file: &Path, generated: &[u8]) {
    if std::env::var_os("CAIRN_GENERATE").is_some() {
        std::fs::write(file, generated).expect("its folder exists");
    }
    assert!(
        std::fs::read(file).is_ok_and(|kept| kept == generated),
        "{file:?} is not what the protocol generates; write it with `CAIRN_GENERATE=1 cargo test -p cairn-generator`"
    );
}

#[test]
fn the_code_that_is_checked_in_is_what_the_protocols_generate() {
    let (real, simulated) = (tonic_prost_build::configure, madsim_tonic_build::configure);
    let kv = "cairn/kv/v1/kv.proto";
    check("client", "sim", kv, Some(simulated().service_generator()));
    let stubs = real().codec_path("crate::codec::KvCodec").service_generator();
    let descriptors = check("client", "", kv, Some(stubs));
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    compare(&client.join("generated/cairn.kv.v1.bin"), &descriptors);

    let peers = "cairn/raft/v1/raft.proto";
    let descriptors = check("raft", "", peers, None);
    // The story: a descriptor that is registered under a short file name collides with another of
    // that name in the same program.
    for name in [peers, "cairn/raft/v1;raftv1"] {
        assert!(descriptors.windows(name.len()).any(|bytes| bytes == name.as_bytes()), "{name}");
    }

    check("benches", "", "etcd.proto", Some(real().build_server(false).service_generator()));
}
