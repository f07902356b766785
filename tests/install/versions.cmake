# Which version of memtrain find_package takes: cmake -DOUT=FOLDER -P versions.cmake
#
# Reads the template of the version file as find_package does, for versions before and after 1.0.
set(template "${CMAKE_CURRENT_LIST_DIR}/../../setup/package/memtrain-config-version.cmake.in")

# judge(WHAT WANTED): whether the file says what is wanted, of the PACKAGE_FIND_... that are set.
macro(judge what wanted)
  configure_file("${template}" "${OUT}/version.cmake" @ONLY)
  include("${OUT}/version.cmake")
  if(NOT "${PACKAGE_VERSION_COMPATIBLE}" STREQUAL "${wanted}")
    message(SEND_ERROR "${VERSION} for ${what}: ${PACKAGE_VERSION_COMPATIBLE} instead of ${wanted}")
  endif()
endmacro()

# asked(MAJOR MINOR PATCH WANTED): find_package(memtrain MAJOR.MINOR.PATCH)
function(asked major minor patch wanted)
  set(PACKAGE_FIND_VERSION "${major}.${minor}.${patch}")
  set(PACKAGE_FIND_VERSION_MAJOR ${major})
  set(PACKAGE_FIND_VERSION_MINOR ${minor})
  judge("${PACKAGE_FIND_VERSION}" ${wanted})
endfunction()

# between(FIRST LAST INCLUDE|EXCLUDE WANTED): find_package(memtrain FIRST...LAST), since CMake 3.19
function(between first last end wanted)
  set(PACKAGE_FIND_VERSION_RANGE "${first}...${last}")
  set(PACKAGE_FIND_VERSION_MIN ${first})
  set(PACKAGE_FIND_VERSION_MAX ${last})
  set(PACKAGE_FIND_VERSION_RANGE_MAX ${end})
  judge("${PACKAGE_FIND_VERSION_RANGE} ${end}" ${wanted})
endfunction()

set(VERSION 0.3.2)
set(SOVERSION 0.3)
asked(0 3 0 TRUE)
asked(0 3 2 TRUE)
asked(0 3 3 FALSE)
asked(0 2 0 FALSE)
asked(0 4 0 FALSE)
asked(1 0 0 FALSE)
between(0.2 0.4 INCLUDE TRUE)
between(0.3.2 0.3.2 INCLUDE TRUE)
between(0.2 0.3.2 EXCLUDE FALSE)
between(0.3.3 0.4 INCLUDE FALSE)
between(0.1 0.3.1 INCLUDE FALSE)

set(VERSION 2.3.4)
set(SOVERSION 2)
asked(2 0 0 TRUE)
asked(2 3 4 TRUE)
asked(2 4 0 FALSE)
asked(1 9 0 FALSE)
asked(0 2 0 FALSE)
asked(3 0 0 FALSE)
