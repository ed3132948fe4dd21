@echo off
rem Installs Sinew for one user on Windows 10 or later, or removes it: install.cmd, install.cmd remove
rem SINEW_RELEASES is where the archives and SHA256SUMS lie. The archive's SHA-256 is checked; a
rem signature is not. Nobody has tried this on Windows.
setlocal enabledelayedexpansion
set "to=%LOCALAPPDATA%\Programs\Sinew"
if /i "%~1"=="remove" goto remove
if not "%~1"=="" (
    echo unknown argument %~1; there is: remove
    exit /b 2
)
if "%SINEW_RELEASES%"=="" (
    echo not installed: SINEW_RELEASES is not set: no release has been published yet.
    exit /b 1
)
set "work=%TEMP%\sinew-install-%RANDOM%"
mkdir "%work%" || exit /b 1
curl -fsSL -o "%work%\SHA256SUMS" "%SINEW_RELEASES%/SHA256SUMS" || goto unreachable
set "name="
for /f "tokens=1,2" %%a in ('findstr /e /c:"-x86_64-windows.zip" "%work%\SHA256SUMS"') do (
    set "wanted=%%a"
    set "name=%%b"
)
if "%name%"=="" (
    echo not installed: SHA256SUMS names no archive for Windows.
    goto failed
)
curl -fsSL -o "%work%\%name%" "%SINEW_RELEASES%/%name%" || goto unreachable
set "found="
for /f "skip=1 delims=" %%h in ('certutil -hashfile "%work%\%name%" SHA256') do (
    if "!found!"=="" set "found=%%h"
)
rem Older versions print the bytes apart.
set "found=%found: =%"
if /i not "%found%"=="%wanted%" (
    echo not installed: the SHA-256 of %name% is %found%, and should be %wanted%.
    goto failed
)
tar -xf "%work%\%name%" -C "%work%" || goto failed
if not exist "%to%" mkdir "%to%"
rem A program that runs cannot be replaced.
copy /y "%work%\%name:~0,-4%\*" "%to%" >nul || (
    echo not installed: end sinew.exe first: sinew service uninstall
    goto failed
)
rmdir /s /q "%work%"
"%to%\sinew.exe" --version
echo It was installed: %to%\sinew.exe. Only the SHA-256 was checked.
echo Add that folder to the PATH: Settings, Environment variables. Next: sinew up
exit /b 0

:unreachable
echo not installed: %SINEW_RELEASES% cannot be reached.
:failed
rmdir /s /q "%work%"
exit /b 1

:remove
if not exist "%to%\sinew.exe" (
    echo %to% has no sinew.exe.
    exit /b 1
)
"%to%\sinew.exe" service uninstall >nul 2>nul
rmdir /s /q "%to%" || exit /b 1
echo Sinew was removed from %to%. Its data stay in %LOCALAPPDATA%\Sinew.
