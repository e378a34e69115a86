// libomp loses a few kilobytes whenever a team changes its size. LeakSanitizer calls this to learn
// which leaks to ignore.
extern "C" const char* __lsan_default_suppressions() { return "leak:libomp.so\n"; }
