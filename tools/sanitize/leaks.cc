// libomp forgets a few kilobytes whenever a team changes its size; LeakSanitizer asks here what is
// not ours.
extern "C" const char* __lsan_default_suppressions() { return "leak:libomp.so\n"; }
