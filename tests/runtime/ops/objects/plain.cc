// A shared object that has nothing to do with niche.
extern "C" __attribute__((visibility("default"))) int answer() { return 42; }
