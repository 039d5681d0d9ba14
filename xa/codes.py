"""X/Open's flags and return codes, with their values from ``<xa.h>`` (The XA Specification, appendix A)."""

TMNOFLAGS = 0x00000000
TMREGISTER = 0x00000001
TMNOMIGRATE = 0x00000002
TMUSEASYNC = 0x00000004
TMMIGRATE = 0x00100000
TMJOIN = 0x00200000
TMMULTIPLE = 0x00400000
TMENDRSCAN = 0x00800000
TMSTARTRSCAN = 0x01000000
TMSUSPEND = 0x02000000
TMSUCCESS = 0x04000000
TMRESUME = 0x08000000
TMNOWAIT = 0x10000000
TMFAIL = 0x20000000
TMONEPHASE = 0x40000000
TMASYNC = 0x80000000

XA_OK = 0
XA_RDONLY = 3
XA_RETRY = 4
XA_HEURMIX = 5
XA_HEURRB = 6
XA_HEURCOM = 7
XA_HEURHAZ = 8
XA_NOMIGRATE = 9
XA_RBBASE = 100
XA_RBROLLBACK = 100
XA_RBCOMMFAIL = 101
XA_RBDEADLOCK = 102
XA_RBINTEGRITY = 103
XA_RBOTHER = 104
XA_RBPROTO = 105
XA_RBTIMEOUT = 106
XA_RBTRANSIENT = 107
XA_RBEND = 107

XAER_ASYNC = -2
XAER_RMERR = -3
XAER_NOTA = -4
XAER_INVAL = -5
XAER_PROTO = -6
XAER_RMFAIL = -7
XAER_DUPID = -8
XAER_OUTSIDE = -9

_ALIASES = ("XA_RBBASE", "XA_RBEND")
NAMES = {
    value: name for name, value in list(globals().items()) if name.startswith(("XA_", "XAER_")) and name not in _ALIASES
}


class XAError(Exception):
    """An xa_* call failed. ``code`` is X/Open's return code; the text names the reason and the remedy."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{NAMES.get(code, code)}: {text}")
        self.code = code
