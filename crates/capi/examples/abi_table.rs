//! Prints the layouts and constants of `softrdma_capi::abi`, one a line, for `cargo xtask abi`.

use softrdma_capi::abi;

fn main() {
    for structure in abi::structures() {
        println!(
            "type {} {} {}",
            structure.kind, structure.name, structure.size
        );
        for field in structure.fields {
            // `priv` and `type` are keywords here; paths print with blanks around their dots.
            let path = field.path.replace("r#", "").replace(' ', "");
            let added =
                abi::ADDED_AFTER_44.contains(&format!("{}.{path}", structure.name).as_str());
            let size = field.size.map_or("-".to_owned(), |bytes| bytes.to_string());
            let since = if added { "later" } else { "44" };
            println!("field {path} {} {size} {since}", field.offset);
        }
    }
    for constant in abi::constants() {
        println!("constant {} {}", constant.name, constant.value);
    }
}
