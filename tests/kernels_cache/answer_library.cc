extern "C" int niche_answer() { return NICHE_ANSWER; }
