"""Who made a version and from what: signatures, the policy that says whose count, provenance, aliases seen.

Signatures are those of the model-signing library, in the form of Sigstore's bundles: its own command checks a
bundle's folder without optpipe (docs/signing.md).
"""

from optpipe.proofs.examine import Examined, examine, judge
from optpipe.proofs.keys import Signer, choose_signer
from optpipe.proofs.notary import Claim, Notary
from optpipe.proofs.signing import Proof, check, sign
from optpipe.proofs.trust import Policy, Trusted, load_policy

__all__ = [
    "Claim",
    "Examined",
    "Notary",
    "Policy",
    "Proof",
    "Signer",
    "Trusted",
    "check",
    "choose_signer",
    "examine",
    "judge",
    "load_policy",
    "sign",
]
