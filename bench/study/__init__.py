"""The load study: what clients keep beside background work, under each scheduler and profile.

It runs on clusters that it is given, stock Ceph or Siphon, by their ceph.conf, and on ones that it starts itself.
How to use it, and what each number means, is in docs/load-study.md.
"""
