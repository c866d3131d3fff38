//! Generates the protocol's types and stubs from `proto/cairn/kv/v1/kv.proto` in pure Rust (no
//! `protoc`). Keeps the encoded descriptor set for the server's reflection service.

use std::path::PathBuf;

use prost::Message;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let descriptors = protox::compile(["cairn/kv/v1/kv.proto"], ["proto"])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?).join("kv.bin");
    std::fs::write(&out, descriptors.encode_to_vec())?;
    tonic_build::configure()
        .bytes(["."])
        .file_descriptor_set_path(&out)
        .skip_protoc_run()
        .compile_protos(&["proto/cairn/kv/v1/kv.proto"], &["proto"])?;
    // The stub generator has no option for the codec, so replace it in the generated code.
    let stubs = PathBuf::from(std::env::var("OUT_DIR")?).join("cairn.kv.v1.rs");
    let generated = std::fs::read_to_string(&stubs)?;
    let ours = generated.replace("tonic_prost::ProstCodec", "crate::codec::KvCodec");
    if ours == generated {
        return Err("the generated stubs do not name the codec to replace".into());
    }
    std::fs::write(&stubs, ours)?;
    Ok(())
}
