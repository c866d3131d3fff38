//! Compiles the part of etcd's protocol that the comparison uses, in pure Rust: it needs no
//! `protoc`.

use prost::Message as _;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto/etcd.proto");
    let descriptors = protox::compile(["proto/etcd.proto"], ["proto"])?;
    let file = PathBuf::from(std::env::var("OUT_DIR")?).join("etcd.bin");
    std::fs::write(&file, descriptors.encode_to_vec())?;
    tonic_build::configure()
        .build_server(false)
        .bytes(["."])
        .file_descriptor_set_path(&file)
        .skip_protoc_run()
        .compile_protos(&["proto/etcd.proto"], &["proto"])?;
    Ok(())
}
