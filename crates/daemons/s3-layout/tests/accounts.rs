//! Users as administrators change them: names lead to one user, also after a gateway ended at any
//! step of a change, and a change is made of the newest state or not at all.

mod memory;

use memory::{Disk, Link, gateway, run};
use rgw::key::User;
use rgw::user::{AccessKey, UserInfo};
use s3_layout::Layout;
use s3_layout::api::{BucketName, NewBucket, UserId};
use s3_layout::rgw::{Alias, Rgw, Stored};
use std::rc::Rc;

fn user(id: &str, email: &str, keys: &[&str]) -> UserInfo {
    let key = |id: &&str| {
        let id = bytes::Bytes::copy_from_slice(id.as_bytes());
        (id.clone(), AccessKey { id, key: "secret".into(), subuser: bytes::Bytes::new() })
    };
    UserInfo {
        user_id: User { id: id.to_owned().into(), ..User::default() },
        email: email.to_owned().into(),
        access_keys: keys.iter().map(key).collect(),
        ..UserInfo::default()
    }
}

async fn owner_of(rgw: &Rgw, key: &str) -> Option<String> {
    let found = rgw.admin().account_of(Alias::Key, key).await.unwrap();
    found.map(|a| String::from_utf8_lossy(&a.info.user_id.id).into_owned())
}

#[test]
fn a_name_is_that_of_one_user() {
    let disk = Disk::new();
    run(async {
        let rgw = gateway(&Link::new(&disk, None, None)).await;
        let admin = rgw.admin();
        let ann = user("ann", "a@x", &["KA", "KB"]);
        assert_eq!(admin.store_account(None, &ann).await.unwrap(), Stored::Done);
        assert_eq!(admin.store_account(None, &ann).await.unwrap(), Stored::Changed);
        assert_eq!(owner_of(&rgw, "KA").await.as_deref(), Some("ann"));
        // What a refused user had taken is free again.
        let bob = user("bob", "a@x", &["KC"]);
        let taken = Stored::Taken(Alias::Email, "a@x".into());
        assert_eq!(admin.store_account(None, &bob).await.unwrap(), taken);
        assert_eq!(owner_of(&rgw, "KC").await, None);
        assert!(admin.account(&bob.user_id).await.unwrap().is_none());
        let carl = user("carl", "", &["KC"]);
        assert_eq!(admin.store_account(None, &carl).await.unwrap(), Stored::Done);

        // A change is of the state that was read.
        let old = admin.account(&ann.user_id).await.unwrap().unwrap();
        let fewer = user("ann", "", &["KB"]);
        assert_eq!(admin.store_account(Some(&old), &fewer).await.unwrap(), Stored::Done);
        let again = user("ann", "a@x", &["KB", "KD"]);
        assert_eq!(admin.store_account(Some(&old), &again).await.unwrap(), Stored::Changed);
        assert_eq!((owner_of(&rgw, "KA").await, owner_of(&rgw, "KD").await), (None, None));
        assert_eq!(
            admin.store_account(None, &user("bob", "a@x", &["KA"])).await.unwrap(),
            Stored::Done
        );
        let mut names = admin.user_names("", 0).await.unwrap().names;
        names.sort();
        assert_eq!(names, ["ann", "bob", "carl"]);

        assert!(!admin.remove_account(&old).await.unwrap());
        let now = admin.account(&ann.user_id).await.unwrap().unwrap();
        assert!(admin.remove_account(&now).await.unwrap());
        assert_eq!(owner_of(&rgw, "KB").await, None);
        assert_eq!(owner_of(&rgw, "KA").await.as_deref(), Some("bob"));
    });
}

/// Changes a user through a gateway that ends after `steps` changes of objects. `true` if it lived.
fn change_and_end(disk: &Rc<Disk>, steps: u32) -> bool {
    let link = Link::new(disk, None, None);
    run(async {
        let rgw = gateway(&link).await;
        link.end_after(steps);
        let work = async {
            let admin = rgw.admin();
            let ann = User { id: "ann".into(), ..User::default() };
            let old = admin.account(&ann).await.unwrap().unwrap();
            let new = user("ann", "new@x", &["KB", "KC"]);
            assert_eq!(admin.store_account(Some(&old), &new).await.unwrap(), Stored::Done);
        };
        tokio::select! {
            () = work => true,
            () = link.end.notified() => false,
        }
    })
}

#[test]
fn a_gateway_that_ends_leaves_no_name_that_cannot_be_taken() {
    for steps in 0.. {
        let disk = Disk::new();
        run(async {
            let rgw = gateway(&Link::new(&disk, None, None)).await;
            let ann = user("ann", "old@x", &["KA", "KB"]);
            assert_eq!(rgw.admin().store_account(None, &ann).await.unwrap(), Stored::Done);
        });
        let lived = change_and_end(&disk, steps);
        run(async {
            let rgw = gateway(&Link::new(&disk, None, None)).await;
            let admin = rgw.admin();
            let ann = User { id: "ann".into(), ..User::default() };
            let info = admin.account(&ann).await.unwrap().unwrap().info;
            for key in ["KA", "KB", "KC"] {
                let has = info.access_keys.contains_key(key.as_bytes());
                let led = owner_of(&rgw, key).await;
                assert_eq!(led.as_deref(), has.then_some("ann"), "{key} after {steps}");
                let taken = admin.store_account(None, &user("bob", "", &[key])).await.unwrap();
                assert_eq!(taken == Stored::Done, !has, "{key} after {steps}");
                if !has {
                    let bob = User { id: "bob".into(), ..User::default() };
                    let bob = admin.account(&bob).await.unwrap().unwrap();
                    assert!(admin.remove_account(&bob).await.unwrap());
                }
            }
        });
        if lived {
            assert!(steps > 4, "a change has a record and four names");
            return;
        }
    }
}

#[test]
fn buckets_have_owners_quotas_and_checks() {
    let disk = Disk::new();
    run(async {
        let rgw = gateway(&Link::new(&disk, None, None)).await;
        let admin = rgw.admin();
        for id in ["ann", "bob"] {
            assert_eq!(admin.store_account(None, &user(id, "", &[])).await.unwrap(), Stored::Done);
        }
        let (ann, bob) = (user("ann", "", &[]).user_id, user("bob", "", &[]).user_id);
        let name = BucketName { tenant: String::new(), name: "b".into() };
        let new =
            NewBucket { name: name.clone(), owner: UserId::parse("ann"), ..NewBucket::default() };
        rgw.create_bucket(new).await.unwrap();
        let quota = rgw::bucket::QuotaInfo { enabled: true, max_objects: 3, ..Default::default() };
        admin.set_bucket_quota(&name, quota).await.unwrap();
        assert_eq!(rgw.bucket(&name).await.unwrap().as_ref().quota.max_objects, Some(3));

        admin.link_bucket(&name, &bob, &Default::default()).await.unwrap();
        assert_eq!(admin.buckets_of(&ann).await.unwrap(), [""; 0]);
        assert_eq!(admin.buckets_of(&bob).await.unwrap(), ["b"]);
        assert!(!admin.unlink_bucket(&name, &ann).await.unwrap());
        assert!(admin.unlink_bucket(&name, &bob).await.unwrap());
        assert_eq!(admin.buckets_of(&bob).await.unwrap(), [""; 0]);
        admin.link_bucket(&name, &bob, &Default::default()).await.unwrap();

        admin.open_buckets(&bob, false).await.unwrap();
        let refused = rgw.bucket(&name).await.map(|_| ()).unwrap_err();
        assert_eq!(refused.code(), s3::ErrorCode::UserSuspended);
        admin.open_buckets(&bob, true).await.unwrap();
        rgw.bucket(&name).await.unwrap();

        let found = admin.check_index(&name, false).await.unwrap();
        assert!(found.lost_parts.is_empty() && found.existing == found.calculated);
        assert_eq!(admin.bucket_names("", 0).await.unwrap().names, ["b"]);
        admin.remove_bucket(&name, true).await.unwrap();
        assert!(admin.bucket_records(&name, true).await.is_err());
    });
}
