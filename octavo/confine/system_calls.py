"""The numbers of the system calls that a confined process must not make, by architecture."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Architecture:
    """One kind of processor as a filter sees it: its code, and its column in the tables."""

    audit_code: int
    column: int
    seccomp: int  # the number of the call that installs a filter
    has_x32: bool  # whether calls have a second set of numbers, for 32-bit programs


ARCHITECTURES = {
    "x86_64": Architecture(0xC000003E, 0, 317, has_x32=True),
    "aarch64": Architecture(0xC00000B7, 1, 277, has_x32=False),
}
Numbers = tuple[int | None, int | None]  # of x86_64 and aarch64; None: there is no such call

# Calls that open a file by its name, with the index of the argument that holds the flags.
OPENS_WITH_FLAGS: dict[str, tuple[Numbers, int]] = {
    "open": ((2, None), 1),
    "openat": ((257, 56), 2),
}
# Calls about one process, with the only values that the argument of that index may have: the
# number of the process itself, or 0 where that means the same.
ON_ITSELF: dict[str, tuple[Numbers, int, bool]] = {
    "kill": ((62, 129), 0, False),
    "tgkill": ((234, 131), 0, False),
    "rt_sigqueueinfo": ((129, 138), 0, False),
    "rt_tgsigqueueinfo": ((297, 240), 0, False),
    "prlimit64": ((302, 261), 0, True),
}
CLONE: Numbers = (56, 220)
CLONE3: Numbers = (435, 435)
IOCTL: Numbers = (16, 29)

# Calls among those that make memory without a name, which another process is given by a socket.
SHARING = frozenset({"memfd_create"})

REFUSED: dict[str, dict[str, Numbers]] = {
    "files": {
        "openat2": (437, 437),
        "creat": (85, None),
        "open_by_handle_at": (304, 265),
        "open_tree": (428, 428),
        "memfd_create": (319, 279),
        "io_uring_setup": (425, 425),
        "io_uring_enter": (426, 426),
        "io_uring_register": (427, 427),
        "unlink": (87, None),
        "unlinkat": (263, 35),
        "rename": (82, None),
        "renameat": (264, 38),
        "renameat2": (316, 276),
        "link": (86, None),
        "linkat": (265, 37),
        "symlink": (88, None),
        "symlinkat": (266, 36),
        "mkdir": (83, None),
        "mkdirat": (258, 34),
        "rmdir": (84, None),
        "mknod": (133, None),
        "mknodat": (259, 33),
        "chmod": (90, None),
        "fchmod": (91, 52),
        "fchmodat": (268, 53),
        "fchmodat2": (452, 452),
        "chown": (92, None),
        "lchown": (94, None),
        "fchown": (93, 55),
        "fchownat": (260, 54),
        "truncate": (76, 45),
        "utime": (132, None),
        "utimes": (235, None),
        "futimesat": (261, None),
        "utimensat": (280, 88),
        "setxattr": (188, 5),
        "lsetxattr": (189, 6),
        "fsetxattr": (190, 7),
        "removexattr": (197, 14),
        "lremovexattr": (198, 15),
        "fremovexattr": (199, 16),
        "mount": (165, 40),
        "umount2": (166, 39),
        "pivot_root": (155, 41),
        "chroot": (161, 51),
        "move_mount": (429, 429),
        "fsopen": (430, 430),
        "fsconfig": (431, 431),
        "fsmount": (432, 432),
        "fspick": (433, 433),
        "mount_setattr": (442, 442),
        "fanotify_init": (300, 262),
        "inotify_init": (253, None),
        "inotify_init1": (294, 26),
    },
    "network": {
        "socket": (41, 198),
        "connect": (42, 203),
        "bind": (49, 200),
        "listen": (50, 201),
        "accept": (43, 202),
        "accept4": (288, 242),
    },
    "processes": {
        "fork": (57, None),
        "vfork": (58, None),
        "execve": (59, 221),
        "execveat": (322, 281),
        "ptrace": (101, 117),
        "process_vm_readv": (310, 270),
        "process_vm_writev": (311, 271),
        "process_madvise": (440, 440),
        "process_mrelease": (448, 448),
        "pidfd_open": (434, 434),
        "pidfd_getfd": (438, 438),
        "pidfd_send_signal": (424, 424),
        "kcmp": (312, 272),
        "tkill": (200, 130),
        "unshare": (272, 97),
        "setns": (308, 268),
        "shmget": (29, 194),
        "semget": (64, 190),
        "msgget": (68, 186),
        "mq_open": (240, 180),
        "mq_unlink": (241, 181),
    },
    "the system": {
        "bpf": (321, 280),
        "perf_event_open": (298, 241),
        "userfaultfd": (323, 282),
        "keyctl": (250, 219),
        "add_key": (248, 217),
        "request_key": (249, 218),
        "kexec_load": (246, 104),
        "kexec_file_load": (320, 294),
        "init_module": (175, 105),
        "finit_module": (313, 273),
        "delete_module": (176, 106),
        "swapon": (167, 224),
        "swapoff": (168, 225),
        "reboot": (169, 142),
        "sethostname": (170, 161),
        "setdomainname": (171, 162),
        "acct": (163, 89),
        "quotactl": (179, 60),
        "quotactl_fd": (443, 443),
        "settimeofday": (164, 170),
        "clock_settime": (227, 112),
        "adjtimex": (159, 171),
        "clock_adjtime": (305, 266),
        "iopl": (172, None),
        "ioperm": (173, None),
        "modify_ldt": (154, None),
        "personality": (135, 92),
        "syslog": (103, 116),
    },
}
