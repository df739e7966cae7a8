#!/usr/bin/env python3
"""What regret.py computes, on times that stand here."""
import math
import unittest

from regret_rule import at_unseen, committed, reaching, summary


class RegretRule(unittest.TestCase):
    def test_the_best_over_all_and_at_each_are_committed(self):
        seen = [{"a": 1.0, "b": 1.5, "c": 0.5}, {"a": 10.0, "b": 5.0}]
        self.assertEqual(committed(seen), ["b", "c"], "b: 7.5 against 10, and best at the second; c at the first")
        self.assertEqual(committed([{"a": 1.0}, {"b": 1.0}]), ["a", "b"])
        self.assertEqual(committed([]), [])
        self.assertEqual(committed([{}, {"a": 1.0}]), ["a"])

    def test_only_a_large_gain_at_every_seen_shape_reaches(self):
        seen, library = [{"a": 1.0, "b": 1.0, "c": 1.0}, {"a": 1.0, "b": 1.0}], [1.5, 1.3]
        self.assertEqual(reaching(["a", "b", "c"], seen, library, 0.3), ["c"], "1.3 is not above 1.3; c does not run at the second")
        self.assertEqual(reaching(["a", "d"], seen, library, 0.2), ["a"])

    def test_regret_is_against_the_best_there_and_ratio_against_the_library(self):
        p = at_unseen("b", {"a": 2.0, "b": 3.0}, 6.0)
        self.assertAlmostEqual(p["regret"], 1.5)
        self.assertAlmostEqual(p["ratio"], 2.0)
        self.assertEqual(p["best"], "a")
        self.assertIsNone(at_unseen("c", {"a": 2.0}, 6.0)["regret"])
        self.assertIsNone(at_unseen(None, {"a": 2.0}, 6.0)["regret"])

    def test_a_summary_counts_what_serves_and_what_loses(self):
        points = [at_unseen("a", {"a": 1.0}, 2.0), at_unseen("a", {"a": 2.0, "b": 1.0}, 1.9), at_unseen("a", {}, 1.0)]
        s = summary(points)
        self.assertEqual((s["shapes"], s["served"], s["slower_than_library"]), (3, 2, 1))
        self.assertAlmostEqual(s["regret_geomean"], math.sqrt(2.0))
        self.assertAlmostEqual(s["regret_worst"], 2.0)
        self.assertAlmostEqual(s["gain_geomean"], (2.0 * 0.95) ** (1 / 3))
        self.assertEqual(summary([]), {"shapes": 0, "served": 0})


if __name__ == "__main__":
    unittest.main()
