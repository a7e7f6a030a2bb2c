use super::*;
use serde_json::json;

const RENAME: &str =
    "osd pool rename name=srcpool,type=CephPoolname name=destpool,type=CephPoolname";
const REWEIGHT: &str =
    "osd reweight name=id,type=CephOsdName type=CephFloat,name=weight,range=0.0|1.0";
const TREE: &str = "osd tree name=epoch,type=CephInt,range=0,req=false \
    name=states,type=CephChoices,strings=up|down|in|out,n=N,req=false";
const SURE: &str =
    "osd lost name=id,type=CephOsdName name=yes_i_really_mean_it,type=CephBool,req=false";

fn command(signature: &'static str) -> Command<()> {
    Command { signature, help: "Help.", module: "osd", perm: "rw", flags: 0, handler: () }
}

fn parse(text: &str) -> Args {
    Args::parse(&[text]).unwrap()
}

#[test]
fn prefixes() {
    assert_eq!(command(RENAME).prefix(), "osd pool rename");
    assert_eq!(command("fsid").prefix(), "fsid");
    assert_eq!(command("osd tree name=x,type=CephInt").prefix(), "osd tree");
}

#[test]
fn descriptions_have_the_shape_the_tool_expects() {
    let t = [command(REWEIGHT), command(SURE)];
    let d = descriptions([&t[..]], true);
    assert_eq!(
        d["cmd000"],
        json!({"sig": ["osd", "reweight", {"name": "id", "type": "CephOsdName"},
                {"name": "weight", "range": "0.0|1.0", "type": "CephFloat"}],
            "help": "Help.", "module": "osd", "perm": "rw", "flags": 0})
    );
    assert_eq!(d["cmd001"]["sig"][3]["type"], "CephBool");
    let old = descriptions([&t[..]], false);
    assert_eq!(old["cmd001"]["sig"][3]["strings"], "--yes-i-really-mean-it");
}

#[test]
fn validation() {
    let check = |sig: &'static str, text: &str| {
        parse(text).validate(&Signature::parse(sig)).map_err(|e| e.to_string())
    };
    assert_eq!(check(RENAME, r#"{"srcpool":"a","destpool":"b"}"#), Ok(()));
    assert_eq!(
        check(RENAME, r#"{"srcpool":"a"}"#),
        Err("missing required parameter: 'destpool'".into())
    );
    assert!(check(REWEIGHT, r#"{"id":1,"weight":1.5}"#).is_err());
    assert!(check(REWEIGHT, r#"{"id":1,"weight":0.5}"#).is_ok());
    assert!(check(TREE, r#"{"epoch":-1}"#).is_err());
    assert!(check(TREE, r#"{"states":["up","sideways"]}"#).is_err());
    assert!(check(TREE, r#"{"states":["up","in"]}"#).is_ok());
    const NAMED: &str = "x name=n,type=CephString,goodchars=[A-Za-z0-9-_.]";
    assert!(check(NAMED, r#"{"n":"a-b_c.D9"}"#).is_ok());
    // Characters are the tool's affair, unless a server looks at them itself.
    assert_eq!(check(NAMED, r#"{"n":"a b/"}"#), Ok(()));
    let chars = |text| parse(text).check_chars(&Signature::parse(NAMED)).map_err(|e| e.to_string());
    assert_eq!(chars(r#"{"n":"a b/"}"#), Err("invalid chars  / in a b/".into()));
    assert_eq!(chars(r#"{"n":"a-b_c.D9"}"#), Ok(()));
}

#[test]
fn typed_access() {
    let a = parse(
        r#"{"prefix":"x y","i":3,"t":"4","f":2.5,"b":true,"yes_it":"--yes-it","l":["a","b"],"one":"z"}"#,
    );
    assert_eq!(a.prefix(), "x y");
    assert_eq!(
        (a.int("i"), a.int("t"), a.float("f"), a.float("i")),
        (Some(3), Some(4), Some(2.5), Some(3.0))
    );
    assert!(a.flag("b") && a.flag("yes_it") && !a.flag("l"));
    assert_eq!(a.strs("l"), ["a", "b"]);
    assert_eq!(a.strs("one"), ["z"]);
    assert!(Args::parse(&["[1]"]).is_err());
    assert!(Args::parse(&["{\"a\":{}}"]).is_err());
    assert!(Args::parse(&["{\"a\":", "1}"]).is_ok());
}

#[test]
fn pretty_json_is_indented_by_four() {
    assert_eq!(
        Format::JsonPretty.json(&json!({"a": [1]})),
        "{\n    \"a\": [\n        1\n    ]\n}\n"
    );
    assert_eq!(Format::Json.json(&json!({"a": 1})), "{\"a\":1}");
}

mod fuzz {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(text in ".{0,200}") {
            if let Ok(a) = Args::parse(&[text]) {
                for sig in [RENAME, REWEIGHT, TREE, SURE] {
                    let _ = a.validate(&Signature::parse(sig));
                }
            }
        }

        #[test]
        fn arbitrary_values_never_panic(id in any::<i64>(), w in any::<f64>(), s in ".{0,20}") {
            let a = Args::from_pairs(&[("id", json!(id)), ("weight", json!(w)), ("srcpool", json!(s)), ("epoch", json!(s))]);
            for sig in [RENAME, REWEIGHT, TREE, SURE] {
                let _ = a.validate(&Signature::parse(sig));
            }
        }
    }
}

#[test]
fn what_follows_the_arguments_is_not_looked_at() {
    let args = Args::parse(&["{\"prefix\": \"rbd perf image stats\"}\""]).unwrap();
    assert_eq!(args.prefix(), "rbd perf image stats");
    assert!(Args::parse(&["\"{}"]).is_err());
    assert!(Args::parse(&[""]).is_err());
}
