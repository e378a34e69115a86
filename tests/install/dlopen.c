/* Opens the plugin behind other libraries, which take most of the room that the loader has for
   thread-local variables of libraries opened at run time; then computes in two threads, of which
   one ends after the plugin has been closed.
   usage: dlopen LIBRARY... PLUGIN */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

static int (*train)(void);
static int in_thread = -1;
static pthread_barrier_t computed, closed;

static void* second(void* unused) {
  in_thread = train();
  pthread_barrier_wait(&computed);
  pthread_barrier_wait(&closed);
  return unused;
}

int main(int argc, char** argv) {
  void* opened = NULL;
  for (int i = 1; i < argc; ++i) {
    opened = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
    if (!opened) {
      fprintf(stderr, "%s\n", dlerror());
      return 1;
    }
  }
  *(void**)&train = dlsym(opened, "plugin_train");
  if (!train) return 1;
  const int here = train();
  pthread_t thread;
  if (pthread_barrier_init(&computed, NULL, 2) || pthread_barrier_init(&closed, NULL, 2)) return 1;
  if (pthread_create(&thread, NULL, second, NULL)) return 1;
  pthread_barrier_wait(&computed);
  if (dlclose(opened)) return 1;
  pthread_barrier_wait(&closed);
  if (pthread_join(thread, NULL)) return 1;
  printf("in the main thread: %d, in another: %d\n", here, in_thread);
  return here == 0 && in_thread == 0 ? 0 : 1;
}
