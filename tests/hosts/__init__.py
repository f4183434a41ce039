"""`ray up` on hosts that the test builds itself: namespaces with sshd and rsync. Needs root on Linux."""
