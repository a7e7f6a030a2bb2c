//! A gateway that keeps everything in memory, for trying clients against the protocol alone. What
//! it prints can be sourced.
//!
//! `cargo run -p s3-gateway --example in_memory -- 127.0.0.1:8000 [ID,NAME,EMAIL,ACCESS,SECRET...]`

#[path = "../tests/common/memory.rs"]
mod memory;

use s3_gateway::{Gateway, Options, listen};
use s3_layout::Layout;
use s3_layout::api::{AccessKey, User, UserId};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let addr = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8000".to_owned());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let memory = memory::Memory::default();
        let users = std::env::args().skip(2).chain(["first,First,,FIRST,first-secret".to_owned()]);
        for user in users {
            let fields: Vec<&str> = user.splitn(5, ',').collect();
            let [id, name, email, key, secret] = fields[..] else {
                return Err(
                    format!("ID,NAME,EMAIL,ACCESS,SECRET was expected, found {user}").into()
                );
            };
            let key = AccessKey { id: key.into(), secret: secret.into(), subuser: String::new() };
            let user = User {
                id: UserId::parse(id),
                display_name: name.into(),
                email: email.into(),
                keys: vec![key],
                ..User::default()
            };
            memory.create_user(&user).await?;
        }
        // Old tests of forms sign so.
        let allow_v2 = std::env::var_os("ALLOW_V2").is_some();
        let options = Options { allow_v2, ..Options::default() };
        let listener = listen(addr.parse()?)?;
        println!("AWS_ENDPOINT_URL=http://{}", listener.local_addr()?);
        println!("AWS_ACCESS_KEY_ID=FIRST\nAWS_SECRET_ACCESS_KEY=first-secret");
        Gateway::new(memory, options).serve(listener, std::future::pending()).await;
        Ok(())
    })
}
