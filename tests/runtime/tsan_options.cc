// For programs under the thread sanitizer. The library of cpp-httplib is not built with it: what its own locks order looks
// like a race. A fault in a kernel ends the process by its signal, as in any other build.
extern "C" {
const char* __tsan_default_options() { return "handle_segv=0"; }
const char* __tsan_default_suppressions() { return "race:libcpp-httplib.so\n"; }
}
