"""The result of one limit (``decision.py``), of one request (``verdict.py``), and its part of one rule. No I/O."""

from .bans import reject_uncounted as reject_uncounted
from .bans import show_bans as show_bans
from .bans import with_added_hits as with_added_hits
from .decision import Banned as Banned
from .decision import BeforeHit as BeforeHit
from .decision import Decision as Decision
from .decision import Hit as Hit
from .decision import SlotCost as SlotCost
from .decision import build_denial as build_denial
from .decision import count_hits as count_hits
from .decision import make_hit as make_hit
from .decision import name_slots as name_slots
from .decision import without_hash_tag as without_hash_tag
from .early import EarlyVerdict as EarlyVerdict
from .rule_verdict import RuleVerdict as RuleVerdict
from .rule_verdict import state_cost as state_cost
from .verdict import CombinedVerdict as CombinedVerdict
from .verdict import Verdict as Verdict
from .verdict import build_verdict as build_verdict
from .verdict import combine_verdicts as combine_verdicts
from .verdict import decide_all as decide_all
